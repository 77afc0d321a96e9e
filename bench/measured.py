"""Numbers of compare.py: medians, ratios with their spread, tables. Standard library only."""
import statistics


def median(values):
    return statistics.median(values)


def spread(values):
    """Median with the least and the most, as text."""
    return f"{median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def ratio(above, below):
    """Of two lists of lists, an inner list for each repetition, which took turns: the ratio of the medians of all values,
    and the least and most ratio of one repetition's medians."""
    one_by_one = [median(a) / median(b) for a, b in zip(above, below)]
    return median(flat(above)) / median(flat(below)), min(one_by_one), max(one_by_one)


def ratio_text(above, below):
    return "{:.2f} ({:.2f}-{:.2f})".format(*ratio(above, below))


def flat(lists):
    return [x for inner in lists for x in inner]


def table(rows):
    """A Markdown table of dictionaries, column by key in the order in which keys come up. None and missing: empty."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    cells = [["" if row.get(key) is None else str(row[key]) for key in header] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header)] + cells)


def self_test():
    assert median([3, 1, 2]) == 2 and median([4, 1, 2, 3]) == 2.5
    assert spread([2.0, 1.0, 4.0]) == "2 (1-4)"
    assert flat([[1, 2], [3]]) == [1, 2, 3]
    # Medians of all: 5 and 1.5; of the repetitions: 2 to 1 and 6 to 2. One slow step does not count.
    assert ratio([[2, 2, 90], [6, 6, 4]], [[1, 1, 1], [2, 2, 2]]) == (5 / 1.5, 2, 3)
    assert ratio_text([[2.0], [4.0]], [[1.0], [1.0]]) == "3.00 (2.00-4.00)"
    assert table([{"a": 1}, {"a": None, "b": 2}]) == "| a | b |\n| --- | --- |\n| 1 |  |\n|  | 2 |"
