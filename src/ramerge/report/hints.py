"""Every code of a finding, and what to do about it. docs/probe.md lists them; a test keeps the two together."""

from __future__ import annotations

HINTS = {
    # from the numbers
    "identical": "was the training saved? an adapter that was never folded in is given as MODEL+ADAPTER",
    "another-base": "merging models of different origin gives noise; look for the base that it was trained from",
    "dense": "compare with task_arithmetic and ties, or count with `mask: grid` if it is stored wider than the base",
    "padded-rows": "nothing to do: no token reads these rows; changed ones count as changed elements all the same",
    # from headers and side files
    "dtype-differs": "count with `mask: grid`, which compares on the base's own grid",
    "adapter-beside": "if the adapter was not folded in, fold it in, or keep it in a directory of its own: MODEL+ADAPTER",
    "adapter-inside": "if it was not folded in, give it as MODEL+ADAPTER",
    "adapter-base": "if the adapter was trained on another model, give that as the base",
    "names-matched": "check one of the names; a wrong match puts the adapter on other weights",
    "tied-head-split": "nothing to do: the merge stores head and embedding apart",
    "config-differs": "the output gets the base's settings; check that the agent was trained from this base",
    "generation-config-broken": "mend or remove `generation_config.json` of the base",
    "generation-config-strict": "mend the base's `generation_config.json`: saving the merged model would fail",
    "special-tokens": "make the files agree, or take the agent's with --tokenizer-from; else generation may not stop",
    "chat-template": "prompt the merged model as this agent was trained, or take its files with --tokenizer-from",
    "template-tokens-missing": "take the tokenizer that the template was written for: --tokenizer-from",
    "tokens-added": "see --vocabulary, or take the agent's tokenizer with --tokenizer-from",
    "tokens-missing": "the base's tokenizer is kept; check that the agent does not need its own",
    "tokens-unreachable": "write such tokens as special tokens, or leave them out",
    "tokenizer-assumed": "put its tokenizer files beside the weights if it has others",
    "merges-differ": "text is split otherwise than in the agent's training; take its files with --tokenizer-from",
    "prefix-stripped": "nothing to do: the trainer's wrapper left the prefix",
    "entries-left-aside": "check that nothing of the model is among them",
    "index-total-size": "nothing to do: the tensors are all there",
    "consolidated-ignored": "remove the files if they are copies; if not, check what the index should name",
    "weights-ignored": "remove the files if they are copies; if not, check what the index should name",
    "code-not-copied": "--allow-remote-code copies them; read them first",
    "remote-code-removed": "--allow-remote-code keeps it",
    "side-files-left-out": "copy those that the merged model needs",
    "buffers-copied": "nothing to do: they are not learned",
    "settled": "check that it is what you mean",
    # errors, by what went wrong
    "config": "correct the option or the file",
    "corruptinput": "download or export the model again",
    "incompatible": "look for the base that the agent was trained from, or export the agent anew",
    "numeric": "the training diverged, or a file is damaged: take an earlier checkpoint",
    "security": "do not use the model before you know why",
    "hub": "check name, network and token",
}


def settled(sentence: str) -> str:
    """The code of a decision that planning put into words only."""
    copied = sentence.startswith("copied from the base") or sentence.endswith(
        "the base's are copied"
    )
    return "buffers-copied" if copied else "settled"
