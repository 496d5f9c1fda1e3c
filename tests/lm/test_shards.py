"""Files of tokens: what is written is read, and what is damaged is refused."""

import numpy as np
import pytest
from tests.lm.conftest import write_documents

from statemix.errors import RequestError
from statemix.lm.shards import TokenWriter, read_tokens

DOCUMENTS = [([1, 2, 3], 5), ([], 0), ([65_535], 2)]


@pytest.fixture
def written(tmp_path):
    return write_documents(tmp_path / "part.1", 65_536, DOCUMENTS, {"source": "here"})


def test_documents_are_read_as_they_were_written(written):
    tokens = read_tokens(written, verify=True)
    assert [tokens.document(n).tolist() for n in range(3)] == [ids for ids, _ in DOCUMENTS]
    assert (tokens.ids.dtype, tokens.num_bytes, tokens.info["source"]) == (np.uint16, 7, "here")
    assert sorted(tokens.info["sha256"]) == ["part.1.bin", "part.1.idx"]


def test_the_layout_is_that_of_megatron(written):
    """Byte by byte: magic, version, code of uint16, counts, lengths, places in bytes, documents."""
    wanted = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8])
    wanted += (3).to_bytes(8, "little") + (4).to_bytes(8, "little")
    wanted += np.array([3, 0, 1], "<i4").tobytes() + np.array([0, 6, 6], "<i8").tobytes()
    wanted += np.arange(4, dtype="<i8").tobytes()
    assert written.with_suffix(".idx").read_bytes() == wanted
    assert written.read_bytes() == np.array([1, 2, 3, 65_535], "<u2").tobytes()


def test_a_document_may_be_several_sequences(written):
    index = written.with_suffix(".idx")
    content = bytearray(index.read_bytes())
    content[26:34] = (3).to_bytes(8, "little")
    content[-32:] = np.array([0, 2, 3], "<i8").tobytes()
    index.write_bytes(content)
    written.with_suffix(".json").unlink()
    assert np.diff(read_tokens(written).bounds).tolist() == [3, 1]


def test_large_vocabularies_take_four_bytes(tmp_path):
    path = write_documents(tmp_path / "large", 70_000, [([69_999], 1)], {})
    assert read_tokens(path).ids.dtype == np.int32
    with pytest.raises(RequestError, match="vocab_size must be in 1"):
        TokenWriter(tmp_path / "other.bin", 2**31 + 1)


def test_files_that_are_missing_are_named(written):
    written.with_suffix(".idx").unlink()
    with pytest.raises(RequestError, match="must be an index of Megatron-LM"):
        read_tokens(written)
    with pytest.raises(RequestError, match="must be a file of tokens, found none"):
        read_tokens(written.with_name("other.bin"))


def test_tokens_outside_the_vocabulary_are_refused(tmp_path):
    writer = TokenWriter(tmp_path / "bad.bin", 50)
    for ids in ([50], [-1]):
        with pytest.raises(RequestError, match=r"document 0 must have tokens in 0..49"):
            writer.add(ids, 1)
    writer.close()
