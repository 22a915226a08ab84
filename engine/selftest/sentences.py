"""English texts of many lengths and subjects, on which the fidelity of quantized models is measured."""

SENTENCES = (
    "hello",
    "cheap flights to Lisbon",
    "How do I reset my password?",
    "The quick brown fox jumps over the lazy dog.",
    "symptoms of iron deficiency in adults",
    "She closed the window because the wind had picked up.",
    "Error 0x80070057: the parameter is incorrect.",
    "def add(a, b): return a + b",
    "Interest rates were left unchanged on Thursday, as most economists had expected.",
    "What is the difference between a process and a thread?",
    "My order #48213 arrived broken, and nobody answers the phone. I want my money back.",
    "The committee shall meet at least four times a year.",
    "best pasta recipe without eggs",
    "Water boils at 100 degrees Celsius at sea level, and at about 93 degrees at 2,000 metres.",
    "He scored twice in the last ten minutes to take the match into extra time.",
    "SELECT name, COUNT(*) FROM orders GROUP BY name ORDER BY 2 DESC;",
    "A violin has four strings, usually tuned in perfect fifths.",
    "Is it going to rain tomorrow?",
    "The tenant shall pay the rent on or before the first day of each month, without notice and without deduction.",
    "I absolutely loved this film: the acting, the music, the light. Go and see it!",
    "Not worth the money. The battery lasts two hours and the screen flickers.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "The patient presented with chest pain radiating to the left arm and shortness of breath on exertion.",
    "In 1869 Mendeleev arranged the known elements by atomic weight and left gaps for those still to be found.",
    "Keep the flame low and stir from time to time, so that the milk does not burn. When it thickens, take the pan off "
    "the stove, add the chocolate in small pieces and stir until nothing of it is left. Let it stand for an hour.",
    "The river rises in the northern hills, runs for some sixty miles through chalk and clay, and enters the sea by a "
    "wide estuary whose mud flats feed a quarter of a million wading birds each winter.",
    "Where several sellers offer the same goods, each has reason to lower the price a little below that of the others, "
    "until it comes so near to the cost of making them that nothing more can be gained by it.",
    "A hash table keeps its entries in an array and finds the place of each by a number computed from its key. Two "
    "keys may lead to the same place; then either the entries form a list there, or the next free place is taken. As "
    "long as the array is not too full, looking up an entry takes about the same time however many there are.",
    "Dear Ms Okafor, thank you for your letter of 3 May. We have looked into the delay and found that the parcel was "
    "returned to our warehouse because the street number was missing from the label. It left again this morning, and "
    "you should have it by Friday. Please accept our apologies and the enclosed voucher.",
    "Scientists who study the deep ocean have long known that some fish can live at pressures that would crush most "
    "vehicles. New measurements suggest that a small molecule in their cells keeps proteins in shape, and that its "
    "amount grows steadily with depth until, at a little more than eight thousand metres, there can be no more of it.",
    "Turn left at the church, follow the lane past two farms and park where the tarmac ends. From there a path leads "
    "uphill through birches, crosses a stream on stepping stones and comes out on the moor. In clear weather one sees "
    "both coasts from the top. Allow four hours there and back, and bring something warm, for the wind never rests.",
    "The meeting is moved to 14:30 on Wednesday, room B12; bring last quarter's figures.",
)
