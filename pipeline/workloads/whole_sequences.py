"""Models of the `transformers` library in a user's step: without questions that the host must ask the device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch import Tensor


@contextmanager
def whole_sequences() -> Iterator[None]:
    """While the body runs, `transformers` does not read two facts from the device, for which the host would wait.

    * Whether sequences are packed: they are not.
    * Whether a mask hides any token: a mask that a step gives is assumed to do so, as in a batch with padding.

    Nothing is done if `transformers` is not loaded, or is older than its module of masks.
    """
    masking_utils: Any = sys.modules.get("transformers.masking_utils")
    with ExitStack() as stack:
        if hasattr(masking_utils, "find_packed_sequence_indices"):
            packed = mock.patch.object(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)
            stack.enter_context(packed)
        if hasattr(masking_utils, "is_tracing"):
            asked = masking_utils.is_tracing

            def is_tracing(tensor: Tensor | None = None) -> bool:
                return bool(asked(tensor)) or (tensor is not None and tensor.device.type == "meta")

            stack.enter_context(mock.patch.object(masking_utils, "is_tracing", is_tracing))
        yield
