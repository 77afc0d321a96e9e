"""Rows of chat data through transformers' chat template and tokenizer, the counterpart of bench_tokenise.c.

    python bench/baseline_tokenise.py TOKENIZER_FOLDER DATA.jsonl [runs]

Prints one line of JSON. One thread; a run reads the file, parses its lines, renders and encodes. apply_chat_template takes
one conversation or a list of them: both are timed, and "seconds" are those of the faster way.
"""
import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from transformers import AutoTokenizer  # noqa: E402


def row_by_row(tokenizer, rows):
    return sum(len(tokenizer.apply_chat_template(r, tokenize=True, return_dict=False)) for r in rows)


def in_lists(tokenizer, rows, size=1000):
    texts = range(0, len(rows), size)
    return sum(len(ids) for i in texts for ids in tokenizer.apply_chat_template(rows[i:i + size], return_dict=False))


def timed(way, tokenizer, path, runs):
    seconds = []
    for _ in range(runs):
        start = time.monotonic()
        with open(path, encoding="utf-8") as f:
            rows = [json.loads(line)["messages"] for line in f]
        tokens = way(tokenizer, rows)
        seconds.append(time.monotonic() - start)
    return seconds, len(rows), tokens


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    runs = int(sys.argv[3]) if len(sys.argv) == 4 else 5
    start = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    load = time.monotonic() - start
    by_way = {w.__name__: timed(w, tokenizer, sys.argv[2], runs) for w in (row_by_row, in_lists)}
    way = min(by_way, key=lambda w: min(by_way[w][0]))
    seconds, rows, tokens = by_way[way]
    print(json.dumps({"program": "baseline", "threads": 1, "way": way, "load_seconds": load, "seconds": seconds,
                      "rows": rows, "tokens": tokens}))
