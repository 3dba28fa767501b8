"""Small models with real tokenizers, built by the tokenizers library."""

import json

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ramerge.models.open import open_checkpoint

TEXT = [
    "the agent solves the task",
    "agents use tools",
    "a tool solves tasks",
    "merge the models",
] * 3


def bpe(size=300, text=TEXT, special=("<|end|>",)):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in special])
    return tokenizer


def unigram(size=40, special=("<unk>", "</s>"), text=TEXT):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def wordpiece(size=60, text=TEXT):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def copy_of(tokenizer):
    return Tokenizer.from_str(tokenizer.to_str())


def with_special(tokenizer, *tokens):
    more = copy_of(tokenizer)
    more.add_special_tokens([AddedToken(t, special=True) for t in tokens])
    return more


def with_merges(tokenizer, *merges):
    """The same BPE tokenizer with further merges after its own, as continued training makes it."""
    tree = json.loads(tokenizer.to_str())
    for left, right in merges:
        tree["model"]["merges"].append([left, right])
        tree["model"]["vocab"][left + right] = max(ids_of(tree)) + 1
    vocab = tree["model"]["vocab"]
    vocab |= {t["content"]: t["id"] for t in tree["added_tokens"]}
    return Tokenizer.from_str(json.dumps(tree))


def ids_of(tree):
    return [*tree["model"]["vocab"].values(), *(t["id"] for t in tree["added_tokens"])]


def save_model(
    directory, tokenizer, *, rows=None, seed=0, width=4, dtype=np.float32, head=True, config=None
):
    """A model directory: embedding, head, one matrix; embedding row i is near i."""
    directory.mkdir(parents=True)
    rows = rows or tokenizer.get_vocab_size()
    rng = np.random.default_rng(seed)
    embedding = (np.arange(rows)[:, None] + rng.uniform(0, 0.9, (rows, width))).astype(dtype)
    tensors = {
        "model.embed_tokens.weight": embedding,
        "model.layers.0.w": rng.normal(size=(width, width)).astype(dtype),
    }
    if head:
        tensors["lm_head.weight"] = -embedding
    save_file(tensors, directory / "model.safetensors")
    settings = {
        "vocab_size": rows,
        "eos_token_id": 1,
        "tie_word_embeddings": not head,
        **(config or {}),
    }
    (directory / "config.json").write_text(json.dumps(settings))
    if tokenizer is not None:
        tokenizer.save(str(directory / "tokenizer.json"))
    return open_checkpoint(str(directory))


def read(checkpoint, name, start=0, stop=None):
    """Elements of a tensor as float64, in its shape when whole."""
    spec = checkpoint.spec(name)
    end = spec.elements if stop is None else stop
    out = np.full((end - start) * spec.dtype.itemsize, 255, np.uint8)
    checkpoint.read(name, start, end, out)
    kind = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}[spec.dtype.name]
    values = out.view(kind).astype(np.float64)
    return values.reshape(spec.shape) if stop is None and start == 0 else values
