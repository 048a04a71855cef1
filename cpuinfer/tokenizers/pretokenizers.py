"""How byte-level BPE tokenizers cut text into words, by the name in tokenizer.ggml.pre. The patterns are facts of the models, published with each.

A rule is one or more patterns, applied one after the other to the pieces that the earlier ones left; whatever no pattern matches stays a piece of its own. ignore_merges: a piece
that is in the vocabulary as a whole is that token, whatever the merges say. add_bos: what the model expects if the file does not say.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnsupportedModel

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _REST
QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST
QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|" + _CASED_REST
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}|\p{{N}}{{1,3}}|" + _CASED_REST
WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
DIGIT = r"\p{N}"
_HAN_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_CJK = "[一-龥ࠀ-一가-퟿]+"
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbe"
    "ῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK_LLM = (r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"(?<!\s)(?>\s+)$", _CJK, r"\p{N}+")
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, DIGIT)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    _HAN_KANA,
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
SPARK = (
    r"\p{N}{1,3}",
    _HAN_KANA,
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+""",
    DIGIT,
)
YOUTU = (r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+", O200K.replace(r"\p{N}{1,3}", DIGIT))
JAIS2 = (
    LLAMA3.removesuffix(r"\s*[\r\n]+|\s+(?!\S)|\s+")
    + r"(?<![^\S\r\n])\s*[\r\n]+|"
    + "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"\s{1,2}(?!\S)|\s{1}"
)
BAILING = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED_CODER = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
EXAONE_MOE = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
CHAMELEON = (r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", DIGIT, r"[\p{P}!-/:-@\[-`{-~]", GPT2)
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")


@dataclass(frozen=True)
class Rule:
    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


# Time grows with the length of the text only: where a model's own pattern would look through a long run from each of its characters, an equal one stands here that does so once.
_RULES: dict[str, Rule] = {
    "default": Rule(DEFAULT),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2": Rule((LLAMA3,), ignore_merges=True, add_bos=True),
    "dbrx smaug-bpe chatglm-bpe glm4": Rule((LLAMA3,)),
    "minicpm5": Rule((r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")), ignore_merges=True),
    "jais-2": Rule((JAIS2,)),
    "deepseek-llm": Rule(DEEPSEEK_LLM),
    "deepseek-coder": Rule(DEEPSEEK_CODER),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": Rule(DEEPSEEK_V3),
    "spark2_5": Rule(SPARK),
    "youtu": Rule(YOUTU, ignore_merges=True),
    "falcon": Rule(FALCON),
    "gpt-2 phi-2 gigachat a.x-4.0 mellum mpt olmo jais trillion granite-docling exaone4": Rule((GPT2,)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": Rule((DIGIT, GPT2)),
    "qwen2 stablelm2 deepseek-r1-qwen hunyuan kormo megrez f2llmv2 grok-2 solar-open": Rule((QWEN2,)),
    "ufakzeka": Rule((QWEN2.removeprefix(_CONTRACTIONS + "|"),)),
    "laguna": Rule((r"[^\n]+|[\n]+", QWEN2)),
    "qwen35": Rule((QWEN35,)),
    "tekken": Rule((TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Rule((O200K,)),
    # The model's own rule cuts a number before every place that 3, 6, 9 ... digits and the number's end follow, no letter after: \d{1,3}(?=(?:\d{3})*\b). Looking ahead once
    # for a number, not once for a digit: such numbers are set apart, then their first one or two digits; O200K cuts the rest into threes.
    "tiny_aya cohere2moe": Rule((r"(?<!\d)(?>\d+)(?!\w)", r"\A\d{1,2}(?=(?:\d{3})+\z)", O200K)),
    "poro-chat bloom gpt3-finnish": Rule((WORDS,)),
    "viking": Rule((WORDS, DIGIT)),
    # The model's own rule cuts before every place that 3, 6, 9 ... digits follow; so it looks ahead once for a number, not once for a digit.
    "superbpe": Rule((r"\p{N}+", r"\A\d{1,2}(?=(?:\d{3})+(?!\d))", r"\d{3}")),
    "bailingmoe bailingmoe2 llada-moe": Rule((BAILING,)),
    "seed-coder": Rule((SEED_CODER,)),
    "exaone-moe": Rule((EXAONE_MOE,)),
    "chameleon": Rule(CHAMELEON, add_bos=True),
}
RULES = {name: rule for names, rule in _RULES.items() for name in names.split()}


def get(name: str) -> Rule:
    if name not in RULES:
        raise UnsupportedModel(f"pre-tokenizer {name!r} is not supported; supported: {', '.join(sorted(RULES))}")
    return RULES[name]
