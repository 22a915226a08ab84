"""How near embeddings computed with fewer bits are to those computed with more: bfloat16, int8 and FP8.

Rows of many models have a few numbers that are large and almost the same in every row. Beside these, a wrong row looks
right: where the cosine of two arbitrary rows is 0.75, one of 0.998 hides an error of 13 % of what tells rows apart. So
rows are compared without the mean row. Each has length 1 before, as where users compare them. SENTENCES are English
texts of many lengths and subjects, on which quantized models are measured.

Shapes: N texts, D numbers a row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NUM_NEAREST = 10
_SMALLEST = 1e-12  # of a length; a row may be zero
# bfloat16 instead of float32, where nobody asked for it
_MIN_COSINE, _MIN_MEDIAN, _MIN_OVERLAP = 0.998, 0.9995, 0.99


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Numbers from 0 to 1, where 1 is the same."""

    min_cosine: float  # of a row and the one that it stands for, -1 to 1; -1 of a row that is not finite
    p1_cosine: float  # the first percentile
    median_cosine: float
    overlap: float  # share of the nearest ten texts of each text that are the same
    num_texts: int

    @property
    def is_hardly_lower(self) -> bool:
        """Whether `--dtype auto` may take bfloat16 for float32."""
        return self.min_cosine >= _MIN_COSINE and self.median_cosine >= _MIN_MEDIAN and self.overlap >= _MIN_OVERLAP

    @property
    def in_words(self) -> str:
        """The figures for people, of embeddings on a CPU."""
        return (
            f"over {self.num_texts} English texts the cosine to float32 rows without the mean row is "
            f"{self.min_cosine:.5f} at least and {self.median_cosine:.5f} in the middle, and {self.overlap:.1%} of "
            f"each text's nearest {_NUM_NEAREST} are the same"
        )


def fidelity(found: NDArray[np.float32], expected: NDArray[np.float32]) -> Fidelity:
    """Compare float32 rows [N, D] with those that they stand for, which are finite. Raises ValueError where the shapes
    differ."""
    if found.shape != expected.shape:
        raise ValueError(f"rows of {found.shape} can't be compared with {expected.shape}")
    rows, right = _of_length_1(_finite(found)), _of_length_1(expected)
    cosines = centred_cosines(found, expected)
    nearest = _nearest(right)
    num_same = sum(len(set(a) & set(b)) for a, b in zip(_nearest(rows).tolist(), nearest.tolist(), strict=True))
    return Fidelity(
        min_cosine=float(cosines.min()),
        p1_cosine=float(np.percentile(cosines, 1)),
        median_cosine=float(np.median(cosines)),
        overlap=num_same / nearest.size if nearest.size else 1.0,
        num_texts=len(right),
    )


def centred_cosines(found: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.float64]:
    """[N]: the cosine of each row with the one that it stands for, both without the mean row; -1 of one that is not
    finite. See `fidelity`."""
    rows, right = _of_length_1(_finite(found)), _of_length_1(expected)
    mean = right.mean(axis=0)
    cosines: NDArray[np.float64] = (_of_length_1(rows - mean) * _of_length_1(right - mean)).sum(axis=1)
    cosines[(rows == right).all(axis=1)] = 1.0  # one that is the mean row has no direction
    cosines[~np.isfinite(found).all(axis=1)] = -1.0
    return cosines


def _finite(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows, with zeros for those that are not finite."""
    return np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, np.float32(0))


def _of_length_1(rows: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return rows / np.maximum(lengths, _SMALLEST)


def _nearest(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """[N, 10] numbers of the other rows that are nearest."""
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, : min(_NUM_NEAREST, len(rows) - 1)]


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
