"""The fixed texts on which quantized models are compared with plain ones: subjects, languages, lengths, oddities.

A third is not English. They are ours; a change of them changes what the gate's figures mean.
"""
# ruff: noqa: RUF001 - letters of other scripts are meant

import itertools

import numpy as np

from engine.model.model_folder import ModelFolder
from engine.selftest import sample_ids
from engine.selftest.sample_ids import Sequences, num_layer_parameters

_MAX_SEQLEN = 1024  # tokens of the fixed texts; those beyond are made to the model's length
_CHARACTERS = 3  # of a token: about as many as the fixed texts have in most models
_MAX_WORK_ON_CPU = 2e10  # tokens of one text times parameters of layers: half a second of one core

_QUERIES = """
hello
cheap flights to Lisbon in May
How do I reset my password?
symptoms of iron deficiency in adults
what is the difference between a process and a thread
best pasta recipe without eggs
Is it going to rain tomorrow?
who wrote the first symphony in C minor
python list comprehension with two conditions
query: how long does a lithium battery keep its charge
Represent this sentence for searching relevant passages: tax on company cars
return policy
"""
_SCIENCE = """
Water boils at 100 degrees Celsius at sea level, and at about 93 degrees at 2,000 metres.
Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.
Bats find their way in the dark by listening for the echoes of their own calls.
The half-life of carbon-14 is about 5,730 years, which makes it a clock for what once lived.
A neutron star packs more than the mass of the sun into a ball some twenty kilometres across.
Enzymes lower the energy that a reaction needs to begin, and are not used up by it.
Tides follow the moon, and are highest when the sun pulls along the same line.
Glass is neither a slow liquid nor an ordinary crystal; its atoms are stuck in disorder.
"""
_LAW_AND_MONEY = """
The tenant shall pay the rent on or before the first day of each month, without notice and without deduction.
Interest rates were left unchanged on Thursday, as most economists had expected.
The committee shall meet at least four times a year, and a majority of its members shall be a quorum.
Where goods are not of satisfactory quality, the buyer may reject them within thirty days.
Revenue rose by 7.4 % to 1,284 million, while operating costs fell for the third quarter in a row.
An option gives its holder the right, but not the duty, to buy at a price that was agreed beforehand.
The policy does not cover damage caused by frost, war, or the wilful act of the insured.
"""
_MEDICINE = """
The patient presented with chest pain radiating to the left arm and shortness of breath on exertion.
Take one tablet twice a day after meals, and do not drink alcohol during the treatment.
In a randomised trial of 1,204 adults the new drug lowered blood pressure by 6 mmHg more than placebo.
Measles spreads through the air and is most contagious before the rash appears.
MRI showed a 14 mm lesion in the right frontal lobe without oedema.
"""
_DAILY = """
My order #48213 arrived broken, and nobody answers the phone. I want my money back.
I absolutely loved this film: the acting, the music, the light. Go and see it!
Not worth the money. The battery lasts two hours and the screen flickers.
Keep the flame low and stir from time to time, so that the milk does not burn.
Turn left at the church, follow the lane past two farms and park where the tarmac ends.
He scored twice in the last ten minutes to take the match into extra time.
She closed the window because the wind had picked up.
The meeting is moved to 14:30 on Wednesday, room B12; bring last quarter's figures.
Can anyone recommend a quiet campsite near the lake that takes dogs?
We painted the kitchen yellow, and now it looks as if the sun never set.
"""
_CODE = """
def add(a, b): return a + b
SELECT name, COUNT(*) FROM orders GROUP BY name ORDER BY 2 DESC;
for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }
fn main() { let v: Vec<u32> = (1..=10).filter(|x| x % 2 == 0).collect(); println!("{:?}", v); }
{"id": 7, "tags": ["a", "b"], "price": 12.5, "active": true, "parent": null}
Error 0x80070057: the parameter is incorrect. at System.IO.FileStream.Init(String path)
git rebase --onto main feature~3 feature && make -j8 test 2>&1 | tee build.log
<div class="card"><a href="/items/42">Details</a></div>
^(?:[a-z0-9]+(?:-[a-z0-9]+)*)$
"""
_TABLES = """
| city | 2019 | 2020 | 2021 | | Oslo | 697 | 702 | 709 | | Bergen | 283 | 286 | 288 |
date;open;high;low;close 2024-03-01;101.2;103.9;100.8;103.1 2024-03-04;103.0;104.4;102.2;102.5
3.14159265358979323846 2.71828182845904523536 1.41421356237309504880
+1 (555) 010-9988, 10.0.0.1:8080, 2024-11-30T23:59:59Z, EUR 1.299,00
x^2 + y^2 = r^2; a_n = (1/pi) * integral of f(x) cos(nx) dx from -pi to pi
"""
_GERMAN = """
Der Mieter hat die Wohnung in dem Zustand zurückzugeben, in dem er sie übernommen hat.
Wie lange muss ein Ei kochen, damit das Gelbe noch weich ist?
Die Donaudampfschifffahrtsgesellschaft stellte im Herbst den Verkehr ein.
Am Abend zog Nebel auf, und die Fähre blieb im Hafen.
Das Gerät lässt sich nicht mehr einschalten, obwohl der Akku voll geladen ist.
"""
_FRENCH = """
Le train de huit heures est supprimé en raison d'un mouvement social.
Comment faire pousser des tomates sur un balcon orienté au nord ?
L'été dernier, nous avons marché de village en village le long du canal.
La cour a jugé que le contrat était nul faute de consentement.
Ajoutez le beurre fondu, puis laissez reposer la pâte pendant une heure.
"""
_SPANISH = """
¿Dónde puedo renovar el pasaporte sin cita previa?
El volcán entró en erupción de madrugada y obligó a evacuar tres pueblos.
La biblioteca abre de lunes a viernes, salvo los días festivos.
Mi abuela guardaba las cartas en una caja de lata debajo de la cama.
"""
_OTHER_LATIN = """
Quanto costa spedire un pacco di cinque chili in Portogallo?
O governo anunciou ontem um novo plano para a gestão da água.
De trein naar Utrecht heeft ongeveer tien minuten vertraging.
Jak długo ważny jest bilet miesięczny kupiony przez internet?
Hava durumuna göre yarın akşam kar yağışı bekleniyor.
Giá cà phê tăng mạnh sau nhiều tháng hạn hán ở Tây Nguyên.
Kahvi on valmista, ja pöydällä on tuoretta leipää.
"""
_CYRILLIC_AND_GREEK = """
Поезд прибывает на третий путь, стоянка пятнадцать минут.
Как восстановить удалённые файлы на внешнем диске?
Учёные обнаружили новый вид светящихся рыб на глубине двух километров.
Договір набирає чинності з дня його підписання обома сторонами.
Η βιβλιοθήκη θα παραμείνει κλειστή μέχρι τη Δευτέρα.
"""
_CHINESE = """
如何在家里制作豆腐?
公司第三季度的净利润同比增长了百分之十二。
这部电影的音乐很美,但是故事有些拖沓。
患者应在饭后半小时服药,每日三次。
从火车站到博物馆步行大约需要二十分钟。
"""
_JAPANESE_AND_KOREAN = """
明日の会議は午後三時からに変更になりました。
この靴は軽くて歩きやすいですが、雨の日には滑ります。
夏休みに北海道を自転車で旅行したいと思っています。
비밀번호를 잊어버렸을 때는 어떻게 해야 하나요?
오늘 저녁에는 바람이 강하게 불고 기온이 크게 떨어지겠습니다.
"""
_ARABIC_HEBREW_HINDI = """
كيف يمكنني تغيير عنوان التوصيل بعد إتمام الطلب؟
أعلنت الشركة عن نتائجها المالية للربع الأول من العام.
تقع المدينة القديمة على تلة تطل على البحر.
החנות סגורה היום בגלל שיפוצים ותיפתח מחר בבוקר.
मौसम विभाग ने अगले दो दिनों में भारी वर्षा की चेतावनी दी है।
क्या यह दवा खाली पेट ली जा सकती है?
ভাষা আন্দোলনের স্মরণে প্রতি বছর এই দিনটি পালিত হয়।
ร้านอาหารเปิดทุกวันตั้งแต่สิบโมงเช้าถึงสี่ทุ่ม
"""
_ODD = """
a
7
!!!
👍
😀😃😄 🚀🚀🚀 ❤️
PLEASE READ THIS NOTICE CAREFULLY BEFORE YOU SIGN ANYTHING AT ALL
tHe qUiCk bRoWn fOx jUmPs oVeR tHe lAzY dOg
asdf qwer zxcv hjkl uiop
zdravo hello bonjour привет 你好 مرحبا
https://example.org/a/b?c=d&e=%20f#g
"""
# Only a word or two differ, so that what tells them apart must come through.
_ALIKE = """
The cat sat on the mat.
The cat sat on the mat!
The cat did not sit on the mat.
The cats sat on the mats.
A cat was sitting on a mat.
The flight leaves at 9:15 from gate 22.
The flight leaves at 9:45 from gate 22.
The flight leaves at 9:15 from gate 28.
"""
_ENGLISH = (_SCIENCE, _LAW_AND_MONEY, _MEDICINE, _DAILY)
_OTHERS = (
    _GERMAN, _FRENCH, _SPANISH, _OTHER_LATIN, _CYRILLIC_AND_GREEK, _CHINESE, _JAPANESE_AND_KOREAN, _ARABIC_HEBREW_HINDI,
)  # fmt: skip
_BLOCKS = (_QUERIES, *_ENGLISH, _CODE, _TABLES, *_OTHERS, _ODD, _ALIKE)


def texts() -> tuple[str, ...]:
    """Texts of one word to about 400, at least 128 of them."""
    singles = [text for block in _BLOCKS for text in _lines(block)]
    repeated = ("x" * 300, "la " * 120, "0" * 200, ". " * 80)
    long = [(lines, len(lines) // 2) for lines in map(_lines, (*_ENGLISH, _CODE, *_OTHERS))]
    paragraphs = [" ".join(half) for lines, middle in long for half in (lines[:middle], lines[middle:])]
    pages = [" ".join(_lines(block)) for block in (*_ENGLISH, _TABLES, *_OTHERS)]
    english = [" ".join(text for block in _rotated(_ENGLISH, turn) for text in _lines(block)) for turn in range(4)]
    foreign = [" ".join(text for block in _rotated(_OTHERS, turn)[:4] for text in _lines(block)) for turn in (0, 4)]
    return (*singles, *repeated, *paragraphs, *pages, *english, *foreign)


def sequences(folder: ModelFolder) -> Sequences:
    """The texts' token ids, or arbitrary ones where the tokenizer knows hardly any word of them. Raises ModelError
    where it can't be read."""
    return _various(folder, sample_ids.of_texts(folder, texts(), max_seqlen=_MAX_SEQLEN))


def long_sequences(folder: ModelFolder, *, is_cpu: bool) -> Sequences:
    """Token ids of texts that are longer than the others: one of the model's length, one of about half of it, …

    On a CPU only those that it computes in a second. Raises ModelError as `sequences` does.
    """
    longest = folder.max_seqlen
    if is_cpu:
        longest = min(longest, int(_MAX_WORK_ON_CPU / num_layer_parameters(folder)))
    halved = (longest >> turn for turn in itertools.count())
    lengths = list(itertools.takewhile(lambda length: length > _MAX_SEQLEN // 2, halved))
    long = [_repeated(turn, _CHARACTERS * (length if turn else 2 * length)) for turn, length in enumerate(lengths)]
    return _various(folder, sample_ids.of_texts(folder, long, max_seqlen=longest)) if long else []


def _various(folder: ModelFolder, found: Sequences) -> Sequences:
    """Texts of one id, that of unknown words, would all have the same row, and the gate would compare noise."""
    counts = np.unique(np.concatenate(found), return_counts=True)[1]
    return sample_ids.arbitrary(folder, map(len, found)) if 2 * counts.max() > counts.sum() else found


def _repeated(turn: int, num_characters: int) -> str:
    """The blocks one after the other, beginning with another one for each turn."""
    blocks = [" ".join(_lines(block)) for block in _rotated(_BLOCKS, 3 * turn)]
    text = " ".join(blocks)
    return " ".join([text] * (num_characters // len(text) + 1))[:num_characters].strip()


def _lines(block: str) -> list[str]:
    return block.strip().split("\n")


def _rotated(blocks: tuple[str, ...], turn: int) -> tuple[str, ...]:
    return blocks[turn:] + blocks[:turn]
