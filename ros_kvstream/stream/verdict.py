# SPDX-License-Identifier: Apache-2.0
"""Whether an answer says that what was asked for has been seen.

Models say that they did not see something in words, so the words decide: an answer such as "none" or "I do not know" is
NOT_SEEN. A plain "no" is NOT_SEEN where the question asks whether something exists or was seen ("was there a cone?");
to other questions ("is the door open?") it is an answer like others.
"""

from __future__ import annotations

import re

from ros_kvstream.records import Verdict

_NOT_SEEN = re.compile(
    r"(none|nothing|nobody|no one|nowhere|never|unknown|unanswerable|not (seen|found|visible|present|shown|in view)"
    r"|there (is|are|was|were) (no|not|none|nothing)|there (isn't|aren't|wasn't|weren't)"
    r"|i (do not|don't|did not|didn't|have not|haven't|cannot|can't|could not|couldn't) "
    r"(know|see|seen|find|tell|determine|remember|recall)|i am not sure|i'm not sure)\b"
)
_NO = re.compile(r"no\b")
_EXISTENCE = re.compile(
    r"\b(is|are|was|were|has|have) there\b|\b(see|seen|saw|notice|noticed|find|found|spot|spotted|remember)\b"
    r"|\b(visible|in view|in sight|present)\b"
)


def verdict_of(question: str, answer: str) -> Verdict:
    """SEEN or NOT_SEEN, by the words of question and answer."""
    said, asked = answer.strip().lower(), question.lower()
    if not said or _NOT_SEEN.match(said) or (_NO.match(said) and _EXISTENCE.search(asked)):
        return Verdict.NOT_SEEN
    return Verdict.SEEN
