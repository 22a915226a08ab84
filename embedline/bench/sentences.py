"""English sentences of mixed lengths, for load that looks like people's texts."""

SENTENCES = (
    "The ferry leaves at seven.",
    "Please send the invoice again.",
    "Nobody answered the door.",
    "How do I cancel my subscription?",
    "Rain is expected by noon.",
    "My parcel never arrived.",
    "Which train goes to the airport?",
    "The meeting was moved to Thursday.",
    "She keeps bees behind the old mill.",
    "What does the warranty cover?",
    "The battery lasts about nine hours.",
    "Store the paint in a dry, cool place.",
    "Can I change my seat after I have checked in?",
    "He repaired the clock with a bent paper clip.",
    "The recipe asks for two eggs and a pinch of salt.",
    "A lost passport must be reported to the police at once.",
    "The museum is closed on Mondays, except in the school holidays.",
    "We compared three vendors and chose the one with the shortest delivery time.",
    "Turn off the water at the main valve before you loosen the second nut.",
    "The committee will publish its findings before the end of the month.",
    "Customers who pay by card are charged only when the order is shipped.",
    "In spring the river floods the lower meadows and carries off the fences.",
    "The patient reported a mild headache, but no fever and no loss of appetite.",
    "If the light blinks twice, hold the button for ten seconds and let the device start again.",
    "The contract may be ended by either side with a notice of three months to the end of a quarter.",
    "Most of the houses in the old quarter were built of brick, after a fire had destroyed the wooden ones.",
    "Whales sleep with one half of the brain at a time, so that the other half can remember to breathe.",
    "The report shows that sales rose by four percent in the north, while they fell slightly in the south.",
    "An engine that is serviced every year uses less fuel and is far less likely to fail on a cold morning.",
    "Students who miss the examination because of illness can repeat it in autumn if a doctor confirms it.",
    "The old library keeps more than a million volumes, of which only a tenth can be borrowed and taken home.",
    "Before the bridge was opened, people had to wait for hours at the ferry, above all on market days in summer.",
    "Researchers measured the temperature of the lake at twelve depths and found that it had warmed by a degree "
    "since the seventies.",
    "To reset your password, open the link that we have sent to your address, choose a new one, and confirm it with "
    "the code from your phone.",
    "The orchestra had rehearsed the slow movement for weeks, yet on the evening itself the conductor took it "
    "noticeably faster than agreed.",
    "When the price of wheat doubled within a year, bakers in the provinces began to mix barley and beans into "
    "their flour, and the towns complained.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen, and nearly all life on land depends "
    "on it in one way or another.",
    "The court held that the seller had known of the damp cellar, had said nothing about it, and therefore had to "
    "bear the cost of the repair.",
    "Our kitchen is open from noon until ten, the last orders are taken at half past nine, and dogs are welcome on "
    "the terrace but not indoors.",
    "After two days of snow the pass was closed to lorries, and drivers who had not brought chains were asked to turn "
    "around at the last village.",
    "A good index makes a slow query fast, but every index has to be kept up to date, and a table with too many of "
    "them becomes slow to write.",
    "The island has no airport; visitors come by boat from the mainland twice a week, and in winter, when the sea is "
    "rough, sometimes not at all.",
)
