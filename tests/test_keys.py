"""Keys as files: made with the right modes, never overwritten, and not believed where others could have had a hand."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
import zmq.auth
from zmq.utils import z85

from purine_ref import cli
from purine_ref.errors import Refused
from purine_ref.transports import keys
from purine_ref.transports.keys import Keys, load_keys, make_keys

SECRETS = [z85.encode(bytes([number]) * 32) for number in (1, 2)]
FIRST, SECOND = [(zmq.curve_public(secret), secret) for secret in SECRETS]
"""Two pairs, the same in every process that collects these tests."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where keys may be made."""
    return tmp_path / "keys"


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A umask that forbids nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """A umask that lets others read, whatever it is outside."""
    before = os.umask(0o022)
    yield
    os.umask(before)


# Making --------------------------------------------------------------------------------------------------------------


def test_a_pair_is_two_files_that_load(folder: Path) -> None:
    public_file, private_file = make_keys(folder)
    assert (public_file, private_file) == (folder / "purine.key", folder / "purine.key_secret")
    held = load_keys(folder)
    assert zmq.curve_public(held.secret) == held.public
    assert (held.admitted, held.root) == ({held.public}, held.public)


def test_each_pair_is_another(tmp_path: Path) -> None:
    pairs = [make_keys(tmp_path / str(number)) for number in range(3)]
    assert len({load_keys(public.parent).public for public, _ in pairs}) == 3


@pytest.mark.usefixtures("open_umask")
def test_the_private_file_is_never_readable_by_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mode is right when it appears, whatever the umask, and nothing mends it later."""
    made: list[int] = []
    link = os.link

    def seen(source: Path, target: Path) -> None:
        made.append(mode(source))
        link(source, target)

    monkeypatch.setattr(os, "link", seen)
    monkeypatch.delattr(os, "chmod")
    monkeypatch.delattr(os, "fchmod")
    _, private_file = make_keys(folder)
    assert (made[0], mode(private_file), mode(folder)) == (0o600, 0o600, 0o700)


def test_the_secret_is_in_one_file_and_in_no_text(folder: Path) -> None:
    public_file, private_file = make_keys(folder)
    held = load_keys(folder)
    assert held.secret in private_file.read_bytes()
    assert held.secret not in public_file.read_bytes()
    assert held.secret.decode() not in repr(held)
    assert held.public.decode() in repr(held)


@pytest.mark.parametrize("there", ["purine.key", "purine.key_secret"])
@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_nothing_is_overwritten(folder: Path, there: str, kind: str) -> None:
    folder.mkdir(0o700)
    if kind == "file":
        (folder / there).write_text("mine")
    else:
        (folder / there).symlink_to(folder / "nowhere")
    with pytest.raises(FileExistsError, match=f"{there} is there, and keys are not overwritten: give --name"):
        make_keys(folder)
    assert [file.name for file in folder.iterdir()] == [there]


def test_nothing_is_overwritten_by_two_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one writes its public file between the look and the write: it keeps it, and no half pair is left."""
    keypair = zmq.curve_keypair

    def late() -> tuple[bytes, bytes]:
        (folder / "purine.key").write_text("the other's")
        return keypair()

    monkeypatch.setattr(zmq, "curve_keypair", late)
    with pytest.raises(FileExistsError):
        make_keys(folder)
    assert contents(folder) == {"purine.key": b"the other's"}


def test_a_disk_that_is_full_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        make_keys(folder)
    assert contents(folder) == {}


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", ".hidden", "a b", "a\n", "ä", "x" * 65])
def test_a_name_that_would_lead_elsewhere_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="key name: expected up to 64 letters"):
        make_keys(folder, name)
    assert not folder.exists()


def test_no_keys_are_made_where_others_may_write(folder: Path) -> None:
    folder.mkdir(0o700)
    folder.chmod(0o777)
    with pytest.raises(Refused, match=r"keys can be written by others \(mode 0777\): chmod go-w"):
        make_keys(folder)
    assert contents(folder) == {}


def test_the_tools_of_zeromq_read_the_files(folder: Path) -> None:
    public_file, private_file = make_keys(folder)
    held = load_keys(folder)
    assert zmq.auth.load_certificate(public_file) == (held.public, None)
    assert zmq.auth.load_certificate(private_file) == (held.public, held.secret)


@pytest.mark.usefixtures("usual_umask")
def test_files_of_the_tools_of_zeromq_are_read(folder: Path) -> None:
    folder.mkdir(0o700)
    _, private_file = zmq.auth.create_certificates(folder, "theirs", {"who": "me"})
    with pytest.raises(Refused, match=r"theirs.key_secret can be read by others \(mode 0644\): chmod go-rwx"):
        load_keys(folder)
    os.chmod(private_file, 0o600)
    held = load_keys(folder)
    assert (held.public, held.secret) == zmq.auth.load_certificate(private_file)


# Loading -------------------------------------------------------------------------------------------------------------


def several(folder: Path, *names: str) -> dict[str, Keys]:
    """Folders of hosts that have a pair each, and all public files; what each loads."""
    pairs = {name: make_keys(folder / name, name) for name in names}
    for name in names:
        for public_file, _ in pairs.values():
            if public_file.parent.name != name:
                (folder / name / public_file.name).write_bytes(public_file.read_bytes())
    return {name: load_keys(folder / name) for name in names}


def test_with_a_pair_for_each_host_all_are_admitted(folder: Path) -> None:
    held = several(folder, "rank0", "one", "two")
    publics = {keys.public for keys in held.values()}
    assert len(publics) == 3
    assert all(keys.admitted == publics and keys.root == held["rank0"].public for keys in held.values())


def test_the_pair_of_rank_0_must_have_its_name(folder: Path) -> None:
    with pytest.raises(Refused, match=r"public keys one, zero: name the pair of the host where rank 0 runs 'ra"):
        several(folder, "zero", "one")


def test_several_private_keys_need_a_name(folder: Path) -> None:
    make_keys(folder, "rank0")
    make_keys(folder, "one")
    with pytest.raises(Refused, match="has the private keys one, rank0: leave only the one of this host there"):
        load_keys(folder)
    one, zero = load_keys(folder, "one"), load_keys(folder, "rank0")
    assert one.public != zero.public
    assert one.root == zero.root == zero.public
    assert one.admitted == zero.admitted == {one.public, zero.public}
    with pytest.raises(FileNotFoundError, match=r"no two.key_secret in .*keys: `purine-ref keygen` makes a pair"):
        load_keys(folder, "two")


def test_the_private_file_is_enough(folder: Path) -> None:
    public_file, _ = make_keys(folder)
    before = load_keys(folder)
    public_file.unlink()
    assert load_keys(folder) == before


def test_an_empty_or_missing_folder_says_so(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="keys"):
        load_keys(folder)
    folder.mkdir(0o700)
    with pytest.raises(FileNotFoundError, match=r"no private key \(\*.key_secret\) in .*keys: `purine-ref keygen`"):
        load_keys(folder)


@pytest.mark.parametrize(
    ("what", "bits", "message"),
    [
        ("purine.key_secret", 0o640, r"purine.key_secret can be read by others \(mode 0640\)"),
        ("purine.key_secret", 0o604, r"purine.key_secret can be read by others \(mode 0604\)"),
        ("purine.key_secret", 0o620, r"purine.key_secret can be read by others \(mode 0620\)"),
        ("purine.key", 0o664, r"purine.key can be written by others \(mode 0664\)"),
        ("purine.key", 0o646, r"purine.key can be written by others \(mode 0646\)"),
        ("", 0o770, r"keys can be written by others \(mode 0770\)"),
        ("", 0o1777, r"keys can be written by others \(mode 1777\)"),
    ],
)
def test_what_others_may_read_or_write_is_refused(folder: Path, what: str, bits: int, message: str) -> None:
    make_keys(folder)
    (folder / what).chmod(bits)
    with pytest.raises(Refused, match=message):
        load_keys(folder)


@pytest.mark.parametrize("bits", [0o400, 0o600, 0o700])
def test_what_only_the_owner_may_read_is_believed(folder: Path, bits: int) -> None:
    _, private_file = make_keys(folder)
    private_file.chmod(bits)
    folder.chmod(0o755)
    assert load_keys(folder).public


def certificate(**found: bytes) -> bytes:
    return b"".join(b'  %s-key = "%s"\n' % (kind.encode(), key) for kind, key in found.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"nothing", "expected one line `public-key = ...`, got 0 of them"),
        (certificate(public=FIRST[0]), "expected one line `secret-key = ...`, got 0 of them"),
        (certificate(public=FIRST[0], secret=FIRST[1]) * 2, "expected one line `public-key = ...`, got 2 of them"),
        (certificate(public=FIRST[0], secret=FIRST[1]) + b"#" * 4096, "got more than 4096 bytes"),
        (certificate(public=FIRST[0], secret=FIRST[1][:-1]), "a key, 40 characters of Z85, got 39 that are none"),
        (certificate(public=FIRST[0], secret=b"~" * 40), "a key, 40 characters of Z85, got 40 that are none"),
        (certificate(public=FIRST[0], secret=b"#" * 40), "a key, 40 characters of Z85, got 40 that are none"),
        (certificate(public=FIRST[0], secret=b"\xff" * 40), "a key, 40 characters of Z85, got 40 that are none"),
        (certificate(public=FIRST[0], secret=b""), "a key, 40 characters of Z85, got 0 that are none"),
    ],
)
def test_a_damaged_private_file_is_refused(folder: Path, text: bytes, message: str) -> None:
    _, private_file = make_keys(folder)
    private_file.write_bytes(text)
    with pytest.raises(Refused, match=message):
        load_keys(folder)


def test_a_private_file_with_the_secret_of_another_pair_is_refused(folder: Path) -> None:
    public_file, private_file = make_keys(folder)
    private_file.write_bytes(certificate(public=FIRST[0], secret=SECOND[1]))
    public_file.unlink()
    with pytest.raises(Refused, match=r"expected the secret key of .*, got another's"):
        load_keys(folder)


def test_a_damaged_public_file_is_refused(folder: Path) -> None:
    make_keys(folder)
    (folder / "other.key").write_text("public-key = nonsense\n")
    with pytest.raises(Refused, match=r"other.key: expected one line `public-key = ...`, got 0 of them"):
        load_keys(folder)


def test_halves_of_two_pairs_are_refused(folder: Path) -> None:
    public_file, _ = make_keys(folder)
    public_file.write_bytes(certificate(public=FIRST[0]))
    with pytest.raises(Refused, match=r"key has another public key than .*key_secret: copy the pair again"):
        load_keys(folder)


def test_what_is_no_file_is_refused_and_keeps_nobody(folder: Path) -> None:
    make_keys(folder)
    os.mkfifo(folder / "pipe.key", 0o600)
    with pytest.raises(Refused, match=r"pipe.key: expected a key file, got something that is no file"):
        load_keys(folder)


def test_more_keys_than_a_cluster_has_hosts_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(folder)
    (folder / "other.key").write_bytes(certificate(public=FIRST[0]))
    monkeypatch.setattr(keys, "MOST_KEYS", 1)
    with pytest.raises(Refused, match="expected at most 1 public keys, got 2"):
        load_keys(folder)


def test_keys_are_checked_wherever_they_come_from() -> None:
    held = Keys(*FIRST, frozenset(), SECOND[0])
    assert held.admitted == {FIRST[0], SECOND[0]}
    with pytest.raises(Refused, match="expected the secret key"):
        Keys(FIRST[0], SECOND[1], frozenset(), FIRST[0])
    with pytest.raises(Refused, match="expected a key, 40 characters of Z85"):
        Keys(*FIRST, frozenset([b"x"]), FIRST[0])


# The command ---------------------------------------------------------------------------------------------------------


def test_keygen_makes_a_pair_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a line for each file, however long."""
    folder = tmp_path / ("[red]" + "x" * 200)
    assert cli.run(["keygen", str(folder), "--name", "rank0"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    held = load_keys(folder)
    assert out.split()[2] == str(folder / "rank0.key")
    assert held.secret.decode() not in out
    assert sorted(contents(folder)) == ["rank0.key", "rank0.key_secret"]


def test_keygen_has_json_without_the_secret(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["keygen", str(folder), "--json", "-"]) == 0
    text = capsys.readouterr().out
    report = json.loads(text)
    assert (report["schema"], report["verdict"], report["executed"]) == ("purine-ref/keygen/1", "pass", 1)
    assert report["private"] == str(folder / "purine.key_secret")
    assert load_keys(folder).secret.decode() not in text


def test_keygen_overwrites_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["keygen", str(folder)]) == 0
    before = contents(folder)
    assert cli.run(["keygen", str(folder)]) == 2
    assert "purine.key_secret is there, and keys are not overwritten" in capsys.readouterr().err
    assert contents(folder) == before


def test_keygen_with_a_wrong_name_is_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["keygen", str(folder), "--name", "../x"]) == 64
    assert "key name: expected up to 64 letters" in capsys.readouterr().err
    assert not folder.exists()
