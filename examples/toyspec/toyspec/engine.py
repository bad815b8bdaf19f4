"""Draft, verify, accept: greedy, so that the output is what the model alone would say."""

from toyspec.model import draft, next_token
from toyspec.pool import Row

PAGE = 4


def generate(prompt, max_new_tokens, topk=2, steps=3, speculative=True):
    """Tokens after ``prompt``, and how many each verify accepted (the model's own token included)."""
    tokens, accepted = list(prompt), []
    end = len(prompt) + max_new_tokens
    while len(tokens) < end:
        path = best_path(tokens, topk, steps) if speculative else []
        path.append(next_token(tokens + path))
        path = path[: end - len(tokens)]
        tokens += path
        accepted.append(len(path))
    return tokens[len(prompt) :], accepted


def best_path(tokens, topk, steps):
    """The longest branch of a draft that the model agrees with. Branches beyond the first begin only where the draft is
    in doubt."""
    row = Row(PAGE, topk)
    roots = draft(tokens, topk)
    branches = roots if doubtful(tokens) else roots[:1]
    for branch, token in enumerate(branches):
        path = []
        for step in range(steps):
            row.write(branch, step, token)
            path.append(token)
            token = draft(tokens + path, 1)[0]
    return max((agreed(tokens, row.read(branch, steps)) for branch in range(len(branches))), key=len)


def doubtful(tokens):
    """Return True if a draft here tries more than one branch."""
    return sum(tokens[-2:]) % 5 == 0


def agreed(tokens, path):
    """The part of a path that the model would say itself."""
    kept = []
    for token in path:
        if token != next_token(tokens + kept):
            break
        kept.append(token)
    return kept
