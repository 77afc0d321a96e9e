#!/usr/bin/env python3
"""Freeze what the common tokenizers library (package `tokenizers`, 0.23) does with every component that tartan reads.

    python3 tools/make_tokenizer_variants.py [TEXTS_PER_VARIANT]

Writes tests/fixtures/tokenizers/variants.jsonl, one tokenizer a line:
    name      of the variant
    base      folder under tests/fixtures/tokenizers whose tokenizer.json is changed, or null
    change    top-level keys to replace; the keys of "model" replace single fields (all of them when base is null)
    cases     list of [text, add_special_tokens, ids, ranges in code points, text decoded from the ids or null]
and tests/fixtures/tokenizers/splits.json: the split patterns in public use, texts, and their pieces.

Texts hold only characters whose properties have been the same since the Unicode version of the library's tables.
Decoded text is left out where a normalizer changes an added token: the library then prints the changed form.
"""
import copy, json, os, random, sys
from tokenizers import Regex, Tokenizer, pre_tokenizers

FOLDER = os.path.join(os.path.dirname(__file__), '../tests/fixtures/tokenizers')
rng = random.Random(20)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = CL100K.replace('{1,3}', '')
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
DS3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
       r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
       r"\s*[\r\n]+|\s+(?!\S)|\s+"]
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*|\p{{N}}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = {'GPT2': [GPT2], 'QWEN': [QWEN], 'CL100K': [CL100K], 'QWEN35': [QWEN35], 'DS3': DS3, 'TEKKEN': [TEKKEN],
            'WORDS': [r"\b\w+\b|\W"]}

SPLIT_TEXTS = [
    "I'M We'LL don't DON'T", "’s", "'ſ", "1234567", "١٢٣٤ ½Ⅷ", "a  b", "a\n\n  b", "x  \n\n y", "  lead", "trail  ",
    "tab\tword", "\r\n\r\nx", "你好world123", "नमस्ते", "e\u0301cole", "👨\u200d👩\u200d👧 ok", "a\u00a0b", "a\u200bb",
    " \u3000x", "foo_bar", "!!!\n\nwow", "price: $1,234.56", "$x", "/path/to", "==\n==", "\0a", "\u001ca", "a    b",
    "2024-01-15 3.14159", "こんにちは、世界。Hello", "👩🏽\u200d🚀", "a\u0085b", "a\u2028\nb", "…\n\u00a0", "\ue000a\u0378",
    "HelloWorld", "a\u180eb  \u180e", ""]


def byte_level(prefix=False, regex=False, trim=False):
    return {'type': 'ByteLevel', 'add_prefix_space': prefix, 'trim_offsets': trim, 'use_regex': regex}


def split(pattern, behavior='Isolated', invert=False, kind='Regex'):
    return {'type': 'Split', 'pattern': {kind: pattern}, 'behavior': behavior, 'invert': invert}


def pre(*steps):
    return {'type': 'Sequence', 'pretokenizers': list(steps)}


def norm(*steps):
    return {'type': 'Sequence', 'normalizers': [{'type': s} if isinstance(s, str) else s for s in steps]}


def replace(kind, pattern, content):
    return {'type': 'Replace', 'pattern': {kind: pattern}, 'content': content}


def prepend(text):
    return {'type': 'Prepend', 'prepend': text}


def base(name):
    with open(os.path.join(FOLDER, name, 'tokenizer.json'), encoding='utf-8') as f:
        return json.load(f)


BASES = {name: base(name) for name in ('small', 'neox', 'glm')}


def added(*tokens):
    """The small tokenizer's added tokens and these; a token that the vocabulary holds keeps its id there."""
    vocab, out = BASES['small']['model']['vocab'], copy.deepcopy(BASES['small']['added_tokens'])
    free = max(t['id'] for t in out) + 1
    for t in tokens:
        entry = {'id': vocab.get(t['content'], free), 'single_word': False, 'lstrip': False, 'rstrip': False,
                 'normalized': False, 'special': False}
        free += entry['id'] == free
        out.append({**entry, **t})
    return out


def character_model(first=(), **fields):
    """Characters a-z and a few more, with merges drawn at random."""
    tokens = list(first) + ['<unk>'] + [chr(c) for c in range(97, 123)] + ['▁', 'é', '-', '你']
    parts, merges, draw = [t for t in tokens if len(t) == 1], [], random.Random(5)
    for _ in range(150):
        a, b = draw.choice(parts), draw.choice(parts)
        if len(a + b) < 6:
            merges.append([a, b])
            if a + b not in tokens:
                tokens.append(a + b)
                parts.append(a + b)
    return {'type': 'BPE', 'dropout': None, 'unk_token': '<unk>', 'continuing_subword_prefix': None,
            'end_of_word_suffix': None, 'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False,
            'vocab': {t: i for i, t in enumerate(tokens)}, 'merges': merges, **fields}


def affix_model(prefix, suffix):
    """Letters a-m in all forms that the prefix and the suffix give them."""
    tokens, merges, draw = ['<unk>'], [], random.Random(9)
    for letter in 'abcdefghijklm':
        for form in (letter, prefix + letter, letter + suffix, prefix + letter + suffix):
            if form not in tokens:
                tokens.append(form)
    inner = [t for t in tokens[1:] if t.startswith(prefix)]
    for _ in range(80):
        a, b = draw.choice(tokens[1:]), draw.choice(inner)
        joined = a + b[len(prefix):]
        if len(joined) > 9 or (suffix and a.endswith(suffix)):
            continue
        merges.append([a, b])
        if joined not in tokens:
            tokens.append(joined)
            if joined.startswith(prefix):
                inner.append(joined)
    return {'type': 'BPE', 'unk_token': '<unk>', 'continuing_subword_prefix': prefix or None,
            'end_of_word_suffix': suffix or None, 'vocab': {t: i for i, t in enumerate(tokens)}, 'merges': merges}


def variants():
    """(name, base, change) of every tokenizer."""
    ws = {'type': 'WhitespaceSplit'}
    for behavior in ('Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'):
        for invert in (False, True):
            steps = pre(split('-', behavior, invert, 'String'), split(r'[\-\s]', behavior, invert), byte_level())
            yield f'split-{behavior}-{invert}', 'small', {'pre_tokenizer': steps, 'normalizer': None}
        steps = pre({'type': 'Punctuation', 'behavior': behavior}, byte_level())
        yield f'punctuation-{behavior}', 'small', {'pre_tokenizer': steps}
    yield 'removed-inverted', 'small', {'pre_tokenizer': pre(split(CL100K, 'Removed', True), byte_level())}
    yield 'ds3', 'small', {'normalizer': norm(), 'pre_tokenizer': pre(*[split(p) for p in DS3], byte_level())}
    for each in (False, True):
        steps = pre({'type': 'Digits', 'individual_digits': each}, byte_level(regex=True))
        yield f'digits-{each}', 'small', {'pre_tokenizer': steps}
    yield 'whitespace', 'small', {'pre_tokenizer': pre({'type': 'Whitespace'}, byte_level())}
    yield 'whitespace-split', 'small', {'pre_tokenizer': pre(ws, byte_level())}
    for prefix in (False, True):
        for trim_prefix in (False, True):
            yield f'trim-{prefix}-{trim_prefix}', 'small', {
                'pre_tokenizer': byte_level(prefix, True), 'post_processor': byte_level(trim_prefix, True, True)}
    for form in ('NFC', 'NFD', 'NFKC', 'NFKD'):
        yield f'normal-{form}', 'small', {'normalizer': {'type': form}}
    yield 'lowercase', 'small', {'normalizer': norm('NFD', 'Lowercase', 'StripAccents')}
    yield 'strip', 'small', {'normalizer': {'type': 'Strip', 'strip_left': True, 'strip_right': True}}
    yield 'strip-left', 'small', {'normalizer': norm({'type': 'Strip', 'strip_left': True, 'strip_right': False}, 'NFC')}
    yield 'prepend', 'small', {'normalizer': norm(prepend('▁x'), replace('String', ' ', '▁'))}
    yield 'replace', 'small', {'normalizer': norm(replace('Regex', '[aé]+', '<é>'), 'NFC')}
    yield 'replace-nothing', 'small', {'normalizer': norm(replace('Regex', r'\s+', ''), replace('Regex', r'\p{S}', ''))}
    template = {'type': 'TemplateProcessing',
                'single': [{'SpecialToken': {'id': '<s>', 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}},
                           {'SpecialToken': {'id': '</s>', 'type_id': 0}}],
                'pair': [{'Sequence': {'id': 'A', 'type_id': 0}}, {'Sequence': {'id': 'B', 'type_id': 1}}],
                'special_tokens': {'<s>': {'id': '<s>', 'ids': [2046, 2045], 'tokens': ['<|im_start|>', '<|endoftext|>']},
                                   '</s>': {'id': '</s>', 'ids': [2047], 'tokens': ['<|im_end|>']}}}
    yield 'template', 'small', {'post_processor': template}
    both = {'type': 'Sequence', 'processors': [byte_level(True, True, True), template]}
    yield 'template-trim', 'small', {'post_processor': both}
    yield 'single-word', 'small', {'added_tokens': added(
        {'content': 'foo', 'single_word': True}, {'content': 'foobar'}, {'content': 'é', 'normalized': True},
        {'content': 'ab', 'single_word': True, 'normalized': True})}
    yield 'token-strip', 'small', {'post_processor': byte_level(True, True, True), 'added_tokens': added(
        {'content': '<L>', 'lstrip': True}, {'content': '<R>', 'rstrip': True},
        {'content': '<B>', 'lstrip': True, 'rstrip': True, 'normalized': True})}
    yield 'token-overlap', 'small', {'normalizer': norm('NFD', 'Lowercase'), 'added_tokens': added(
        {'content': 'aa'}, {'content': 'aab'}, {'content': 'abc', 'normalized': True}, {'content': 'bcd'},
        {'content': 'a b'}, {'content': 'É', 'normalized': True})}
    yield 'token-space', 'small', {'pre_tokenizer': byte_level(True, True), 'post_processor': byte_level(False, True, True),
                                   'added_tokens': added({'content': '  '}, {'content': '    ', 'normalized': True},
                                                         {'content': '-'})}
    yield 'merges-ignored', 'glm', {'model': {'ignore_merges': True}}
    yield 'merges-kept', 'glm', {'model': {'ignore_merges': False}}
    yield 'neox-nfkc', 'neox', {'normalizer': {'type': 'NFKC'}}
    yield 'unknown', None, {'model': character_model()}
    yield 'unknown-fused', None, {'model': character_model(fuse_unk=True), 'pre_tokenizer': ws}
    hexes = [f'<0x{i:02X}>' for i in range(256)]
    llama = {'type': 'Sequence', 'decoders': [replace('String', '▁', ' '), {'type': 'ByteFallback'}, {'type': 'Fuse'},
                                              {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]}
    yield 'byte-fallback', None, {'model': character_model(hexes, fuse_unk=True, byte_fallback=True), 'decoder': llama,
                                  'normalizer': norm(prepend('▁'), replace('String', ' ', '▁'))}
    for scheme in ('always', 'first', 'never'):
        for cut in (False, True):
            meta = {'type': 'Metaspace', 'replacement': '▁', 'prepend_scheme': scheme, 'split': cut}
            model = character_model() if cut else character_model(unk_token='<unk>', fuse_unk=True)
            yield f'metaspace-{scheme}-{cut}', None, {'model': model, 'pre_tokenizer': meta, 'decoder': meta,
                                                      'added_tokens': [{**added()[0], 'id': 0, 'content': '<unk>'}]}
    yield 'prefix', None, {'model': affix_model('##', ''), 'pre_tokenizer': ws}
    yield 'suffix', None, {'model': affix_model('', '</w>'), 'pre_tokenizer': ws}
    yield 'prefix-suffix', None, {'model': affix_model('##', '</w>'), 'pre_tokenizer': {'type': 'Whitespace'}}


def tokenizer(name, change):
    out = copy.deepcopy(BASES[name]) if name else {'version': '1.0', 'added_tokens': [], 'model': {}}
    for key, value in change.items():
        out[key] = {**out['model'], **value} if key == 'model' else value
    return out


POOLS = [list('abcdefgh xyz'), list("aab  -\n\r\t'sS"), list('0123456789 ½Ⅷ١'), list('éÉàçñe\u0301\u0323\u0307o\u0308'),
         list('你好こがカ\u3099\u309a、。'), list('नमस्ते\u093c\u0915'), list('가각\u1100\u1161\u11a8한'), list('<>LRBfoobar '),
         list('aabbccdd '), list('  \u00a0\u3000\u0085\u2028\u200b\u001c\ufeff\u1680 x'), list('!?.,$()-_/{}^~·«»€+='),
         list('ÅΩ\u212b\u2126\u0344\u0958\ufb01①Ⅳ\u1e9b\u0323ǅİıſßΣσς'), list('👩\u200d👧🏽\u2764\ufe0f'),
         list('\u0300\u0316\u0345\u0f71\u0f72\u0f74\u05b0\u05b1'), [chr(c) for c in range(32, 127)]]
WORDS = ['<|im_end|>', '<|im_start|>', '<L>', '<R>', '<B>', 'foo', 'foobar', ' foo ', "don't", "I'M", '  ', 'hello',
         '|||IP_ADDRESS|||', '/nothink', 'aaab', 'abc', 'É', 'e\u0301', '[gMASK]', ' ' * 25, ' <B> ', ' <L> <R> ', '-a--']


def text():
    parts = []
    for _ in range(rng.randint(1, 5)):
        pool = rng.choice(POOLS)
        parts.append(rng.choice(WORDS) if rng.random() < 0.4 else
                     ''.join(rng.choice(pool) for _ in range(rng.randint(1, 6))))
    return ''.join(parts)


def cases(name, change, count):
    library = Tokenizer.from_str(json.dumps(tokenizer(name, change)))
    plain = all(library.id_to_token(t['id']) == t['content'] for t in tokenizer(name, change)['added_tokens'])
    for special in [True] + [rng.random() < 0.5 for _ in range(count)]:
        t = text()
        e = library.encode(t, add_special_tokens=special)
        yield [t, special, e.ids, e.offsets, library.decode(e.ids, skip_special_tokens=False) if plain else None]


def splits():
    rows = []
    for t in SPLIT_TEXTS:
        row = {'text': t}
        for name, patterns in PATTERNS.items():
            steps = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), 'isolated') for p in patterns])
            row[name] = [piece for piece, _ in steps.pre_tokenize_str(t)]
        rows.append(row)
    return rows


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    with open(os.path.join(FOLDER, 'variants.jsonl'), 'w', encoding='utf-8') as f:
        for name, start, change in variants():
            line = {'name': name, 'base': start, 'change': change, 'cases': list(cases(start, change, count))}
            f.write(json.dumps(line, ensure_ascii=False, separators=(',', ':')) + '\n')
    with open(os.path.join(FOLDER, 'splits.json'), 'w', encoding='utf-8') as f:
        json.dump({'patterns': PATTERNS, 'rows': splits()}, f, ensure_ascii=False, indent=0)


if __name__ == '__main__':
    main()
