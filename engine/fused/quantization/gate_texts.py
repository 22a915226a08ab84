"""The fixed texts on which quantized models are compared with plain ones: subjects, languages, lengths, oddities.

A third is not English. They are ours; a change of them changes what the gate's figures mean. Rerankers get pairs of
them, put together as in service, but for chat templates, which no engine runs: a hundred documents for one query, and
the other texts for others.
"""
# ruff: noqa: RUF001 - letters of other scripts are meant

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from engine.model.detection.scores import REWARD, names_of
from engine.model.model_folder import ModelFolder
from engine.model.tasks import PairTemplate, Task
from engine.selftest import sample_ids
from engine.selftest.sample_ids import Sequences, num_layer_parameters
from wire.pairs import FilledTemplate, JoinedPairs, cut
from wire.tokenizer_files import has_token_types

if TYPE_CHECKING:
    import tokenizers

_MAX_SEQLEN = 1024  # tokens of the fixed texts; those beyond are made to the model's length
_CHARACTERS = 3  # of a token: about as many as the fixed texts have in most models
_NUM_RANKED = 100  # documents for one query
_IN_LINES = ("{instruction}\n", "{query}\n", "{document}")
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
_RANKED_QUERY = "how can I make my phone's battery last longer"
# From an answer to the query to what only shares a word with it; the other documents share nothing.
_RANKED = """
To make a phone's battery last longer, lower the brightness and keep the charge between 20 and 80 percent.
Turn on the battery saver, and your phone will last hours longer on one charge.
Ten settings that make the battery of your phone last all day
Heat wears a phone's battery out: don't leave it in the sun, and take it out of its case while it charges.
Apps that ask for your position all the time drain the battery. Allow it only while you use them.
A dark theme saves power on phones whose screens light each point by itself.
Mein Handyakku hält länger, seit ich die Helligkeit gesenkt und die Ortung ausgeschaltet habe.
Pour économiser la batterie du téléphone, désactivez le Bluetooth quand il ne sert pas.
手机电池不耐用?降低屏幕亮度,关闭后台应用。
My phone is dead by noon, although I charge it every night. What can I do?
When the battery holds less than 80 percent of what it held when new, have it replaced.
Should I charge my laptop overnight, or does that harm its battery?
Lithium cells lose about two percent of their charge a month when they lie in a drawer.
The new phone has a battery of 5,000 mAh and a screen that draws less power than last year's.
How to make the tyres of your bicycle last longer
Electric cars preheat their batteries in winter, which costs some of their range.
Fast chargers fill half of a phone in twenty minutes, at the price of more heat.
The battery of the smoke alarm beeps when it must be changed.
Where can I hand in old batteries and broken phones?
My phone does not ring when somebody calls.
Phone us on weekdays between nine and five.
The artillery battery stood on the hill above the harbour.
He was charged with assault and battery.
The concert lasted longer than we had expected.
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


def pairs() -> tuple[tuple[str, str], ...]:
    """Queries and documents, at least 128 of them; the first hundred have the same query."""
    others = texts()
    own = _lines(_RANKED)
    num_others = _NUM_RANKED - len(own)
    ranked = [(_RANKED_QUERY, document) for document in (*own, *others[:num_others])]
    return (*ranked, *zip(itertools.cycle(_lines(_QUERIES)), others[num_others:], strict=False))


@dataclass(frozen=True, slots=True)
class GateTexts:
    """Texts, or pairs of them, as one model gets them."""

    sequences: Sequences
    types: Sequences | None  # of their tokens; None = all are 0
    num_ranked: int  # the first so many are the documents of one query, or all that are compared with each other


def fixed(folder: ModelFolder) -> GateTexts:
    """The fixed texts' ids, or arbitrary ones where the tokenizer knows hardly any word of them. Raises ModelError
    where it can't be read."""
    if takes_pairs(folder):
        return _of_pairs(folder, pairs(), max_seqlen=_MAX_SEQLEN, num_ranked=_NUM_RANKED)
    found = _various(folder, sample_ids.of_texts(folder, texts(), max_seqlen=_MAX_SEQLEN))
    return GateTexts(found, None, len(found))


def fixed_and_long(folder: ModelFolder, *, is_cpu: bool) -> GateTexts:
    """With texts that are longer than the others: one of the model's length, one of about half of it, …

    On a CPU only those that it computes in a second. Raises ModelError as `fixed` does.
    """
    short, longest = fixed(folder), folder.max_seqlen
    if is_cpu:
        longest = min(longest, int(_MAX_WORK_ON_CPU / num_layer_parameters(folder)))
    halved = (longest >> turn for turn in itertools.count())
    lengths = list(itertools.takewhile(lambda length: length > _MAX_SEQLEN // 2, halved))
    if not lengths:
        return short
    long = [_repeated(turn, _CHARACTERS * (length if turn else 2 * length)) for turn, length in enumerate(lengths)]
    if not takes_pairs(folder):
        more = _various(folder, sample_ids.of_texts(folder, long, max_seqlen=longest))
        return GateTexts([*short.sequences, *more], None, short.num_ranked)
    paired = _of_pairs(folder, [(_RANKED_QUERY, text) for text in long], max_seqlen=longest, num_ranked=0)
    types = None if short.types is None or paired.types is None else [*short.types, *paired.types]
    return GateTexts([*short.sequences, *paired.sequences], types, short.num_ranked)


def takes_pairs(folder: ModelFolder) -> bool:
    """Whether it is a reranker. A reward model has the same task, but is asked about one text."""
    if folder.task is not Task.RERANK:
        return False
    names = (*names_of(folder.path, folder.config), *map(str.lower, folder.architectures))
    return folder.template is not None or not any(REWARD in name for name in names)


def _of_pairs(folder: ModelFolder, given: Sequence[tuple[str, str]], *, max_seqlen: int, num_ranked: int) -> GateTexts:
    """Each pair's ids and types as in service, cut to `max_seqlen` and to the model's limit. Raises ModelError."""
    if not sample_ids.has_tokenizer(folder):
        joined = [" ".join(pair) for pair in given]
        return GateTexts(sample_ids.of_texts(folder, joined, max_seqlen=max_seqlen), None, num_ranked)
    queries, documents = zip(*given, strict=True)
    firsts = [_cased(folder, folder.default_prompt + query) for query in queries]
    seconds = [_cased(folder, document) for document in documents]
    limit = min(max_seqlen, folder.max_seqlen)
    template = folder.template
    put_together = partial(_joined, folder) if template is None else partial(_filled, template)
    found, types = sample_ids.by_tokenizer(folder, lambda tokenizer: put_together(tokenizer, firsts, seconds, limit))
    various = _various(folder, found)
    return GateTexts(various, types if various is found else None, num_ranked)


def _cased(folder: ModelFolder, text: str) -> str:
    return text.lower() if folder.do_lower_case else text


def _joined(
    folder: ModelFolder, tokenizer: "tokenizers.Tokenizer", firsts: Sequence[str], seconds: Sequence[str], limit: int
) -> tuple[Sequences, Sequences | None]:
    pairs_of = JoinedPairs(tokenizer, has_types=has_token_types(folder.weights_folder))
    tokenizer.no_truncation()
    encoded = (tokenizer.encode_batch(side, add_special_tokens=False) for side in (firsts, seconds))
    sequences, types = Sequences(), Sequences()
    for first, second in zip(*encoded, strict=True):
        pair, room = (first.ids, second.ids), max(limit - pairs_of.num_special, 0)
        if len(first) + len(second) > room:
            pair = cut(pair, room, keeps_end=False)
        token_ids, type_ids = list[int](), list[int]()
        pairs_of.append(pair, token_ids, type_ids)
        sequences.append(np.array(token_ids, np.int32))
        types.append(np.array(type_ids, np.int32))
    return sequences, types if pairs_of.has_types else None


def _filled(
    template: PairTemplate,
    tokenizer: "tokenizers.Tokenizer",
    firsts: Sequence[str],
    seconds: Sequence[str],
    limit: int,
) -> tuple[Sequences, None]:
    parts = template.parts or _IN_LINES
    filled = FilledTemplate(tokenizer, parts, encode_each=lambda encode, texts: encode(texts))
    sequences = Sequences()
    for found in filled.fill(firsts, seconds, instruction=template.instruction, keeps_end=False):
        filled.cut(found, max(sum(len(part.ids) for part in found) - limit, 0))
        sequences.append(np.array([token_id for part in found for token_id in part.ids], np.int32))
    return sequences, None


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
