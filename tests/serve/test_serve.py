"""The server of the page, and what others may not do to it."""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.served import LIMIT_S, NONE, SMALL, Server, endless_search
from wattree.errors import JobError
from wattree.files import yaml_of
from wattree.serve.plans import Plans
from wattree.serve.state import START, PageState

#: A `config.json` that users have themselves.
OWN_CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 1000,
    "num_attention_heads": 8, "intermediate_size": 1024, "max_position_embeddings": 1024,
}  # fmt: skip


@given(st.dictionaries(st.sampled_from([*START, "more", "x"]), st.text(max_size=30), max_size=6))
@settings(max_examples=60, deadline=None)
def test_any_address_is_a_job_or_refused(server: Server, values: dict[str, str]) -> None:
    """Nothing that stands in an address is a defect of the server."""
    status, text = server.ask(f"/figures?{urlencode({**START, **values})}")

    assert status in {200, 422}
    assert "a defect of Wattree" not in text


def test_what_software_cannot_run_is_a_warning_next_to_the_figures(server: Server) -> None:
    """As `simulate` prints it: a note that must be opened would be overlooked."""
    state = {**START, "software": "hf-trainer", "pp": "2"}
    _, text = server.ask(f"/figures?{urlencode(state)}")

    assert re.search(r'<p class="warn">[^<]*not offered by hf-trainer', text)
    assert "not offered" not in text[text.index("<details>") :]


def test_who_has_no_token_or_comes_from_elsewhere_learns_nothing(server: Server) -> None:
    """Other sites in the same browser, names that lead here, and guesses."""
    assert server.ask("/", X_Wattree_Token="guess")[0] == 401
    assert server.ask("/?token=guess", X_Wattree_Token="")[0] == 401
    assert server.ask("/", Host="evil.example")[0] == 421
    assert server.ask("/plans", method="POST", Origin="http://evil.example")[0] == 403
    assert server.ask("/files?name=a.json", Content_Length=f"{1 << 21}")[0] == 413
    assert server.ask(f"/plans/{server.port}")[0] == 422
    assert server.ask("/")[0] == 200


def test_a_body_of_unstated_length_is_refused_where_it_is_too_large(server: Server) -> None:
    """In chunks, which no header counts, and without a traceback in the server's terminal."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    headers = {"X-Wattree-Token": server.token, "Transfer-Encoding": "chunked"}
    chunks = iter([b"x" * (1 << 19)] * 3)
    connection.request("POST", "/files?name=a.json", chunks, headers, encode_chunked=True)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()

    assert answer.status == 413
    assert "at most 1048576 B are taken" in text


def test_noise_on_the_port_does_not_end_the_server(server: Server) -> None:
    """Whatever is sent costs a connection."""
    draws = [
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ]
    draws += [b"G" * 70_000, b"GET /%ff%00 HTTP/1.1\r\nHost: a\r\n\r\n", b"\r\n" * 500]
    for draw in draws * 20:
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as peer:
            try:
                peer.sendall(draw)
            except OSError:
                continue
    assert server.ask("/")[0] == 200


def test_a_second_server_on_the_port_says_so(server: Server) -> None:
    """It does not take the page of the first."""
    words = [sys.executable, "-m", "wattree", "serve", "--no-browser", "--port", str(server.port)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert found.returncode == 2
    assert "is in use" in found.stderr


def test_a_file_of_ones_own_is_parsed_and_used(server: Server) -> None:
    """A `config.json` that was uploaded is a model of the page; what is none is refused."""
    body = json.dumps(OWN_CONFIG).encode()
    status, label = server.ask("/files?name=config.json", method="POST", body=body)
    state = {**SMALL, "model": label, "micro_batch": "1"}
    _, text = server.ask(f"/figures?{urlencode(state)}")

    assert status == 201
    assert "Step time" in text
    assert server.ask("/files?name=a.py", method="POST", body=b"print(1)")[0] == 422
    assert server.ask("/files?name=a.json", method="POST", body=b"[" * 9000)[0] == 422


def test_a_job_file_names_the_file_that_its_user_has(server: Server) -> None:
    """Not the label of the page, which no other command knows."""
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 1000,
        "num_attention_heads": 8, "intermediate_size": 512, "max_position_embeddings": 1024,
    }  # fmt: skip
    body = json.dumps(config).encode()
    _, label = server.ask("/files?name=mine.json", method="POST", body=body)
    _, text = server.ask(f"/job.yaml?{urlencode({**SMALL, 'model': label})}")

    assert yaml_of(text, "file")["model"] == "mine.json"
    assert "# Put mine.json into the folder of this file." in text


def test_a_file_that_is_no_node_is_refused_by_its_own_name(server: Server) -> None:
    """The server's folder means nothing to its user, and the controls keep what they have."""
    body = b"devices: {value: 8, source: ours}\n"
    status, text = server.ask("/files?name=job.yaml", method="POST", body=body)

    assert status == 422
    assert "is missing" in text
    assert "node.yaml" not in text


def test_a_node_that_needs_other_files_is_refused_with_their_names(server: Server) -> None:
    """Only the node is uploaded: what is missing is the device's file, not the node's."""
    body = b"name: mine\nlike: ./ours.yaml\ndevice: ./my-gpu.yaml\nfabric: ./my-fabric.yaml\n"
    status, text = server.ask("/files?name=my-node.yaml", method="POST", body=body)

    assert status == 422
    assert "device: ./my-gpu.yaml is a file of its own" in text
    assert "fabric: ./my-fabric.yaml is a file of its own" in text
    assert "like: ./ours.yaml is a file of its own" in text
    assert "no such file" not in text


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("job.yaml", b"model: gpt2\ndata: {}\ncluster: {}\n", "this is a job, expected a node"),
        ("study.yaml", b"workloads: []\naxes: {}\n", "use `wattree design`"),
        ("gpu.yaml", b"architecture: a\nmatrix_peak: {}\n", "name it as `device:` of a node"),
        ("node.json", b'{"device": "a", "devices": 8}', "this is a node"),
    ],
)
def test_a_file_of_another_kind_is_named(
    server: Server, name: str, body: bytes, words: str
) -> None:
    """With what it is for."""
    status, text = server.ask(f"/files?name={name}", method="POST", body=body)

    assert status == 422
    assert words in text


def test_an_uploaded_file_is_called_as_its_user_calls_it(server: Server) -> None:
    """In messages and in files for frameworks, not by its place on the server."""
    body = json.dumps(OWN_CONFIG).encode()
    _, label = server.ask("/files?name=own.json", method="POST", body=body)
    state = {**SMALL, "model": label, "micro_batch": "1", "software": "hf-trainer"}
    _, refused = server.ask(f"/figures?{urlencode({**state, 'sequence_length': '4096'})}")
    address = f"{server.base}/framework.zip?{urlencode({**state, 'to': 'hf-trainer'})}"
    asked = urllib.request.Request(address, headers={"X-Wattree-Token": server.token})
    with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
        archive = zipfile.ZipFile(io.BytesIO(answer.read()))

    assert "4096 tokens" in refused
    assert "wattree-serve" not in refused
    assert "wattree-serve" not in archive.read("hf-trainer/README.md").decode()


def test_a_link_that_is_partly_wrong_still_opens_the_page(server: Server) -> None:
    """One of another version, and states to compare that are no jobs."""
    state = urlencode(
        {
            **SMALL,
            "unknown": "1",
            "with": urlencode({**SMALL, "micro_batch": "1", "global_batch": "7"}),
        }
    )
    status, text = server.ask(f"/?{state}")

    assert status == 200
    assert "Left out of the address: unknown" in text
    assert 'value="gpt2"' in text
    assert "7 samples cannot be split" in text


def test_figures_side_by_side_stand_in_rows_of_their_own(server: Server) -> None:
    """A node without a price has no cost, and its carbon is not shown as one."""
    states = [urlencode({**START, "node": node}) for node in ("dgx-h100", "8x-rtx-4090")]
    _, text = server.ask("/compare?" + urlencode([("with", state) for state in states]))

    assert re.search(r"Cost per step</th><td>\$[^<]*</td><td>no price</td>", text)
    assert re.search(r"Carbon per step</th><td>[^<]* CO2e</td><td>[^<]* CO2e</td>", text)


def test_a_step_that_does_not_fit_says_what_makes_it_fit(server: Server) -> None:
    """As `simulate` does."""
    state = {**SMALL, "model": "llama-3.1-8b", "node": "dgx-a100", "micro_batch": "1"}
    state |= {"sequence_length": "2048", "global_batch": "8", "sharding": "none"}
    status, text = server.ask(f"/step?{urlencode(state)}")

    assert status == 200
    assert "What makes it fit" in text


def test_a_search_whose_page_was_closed_ends() -> None:
    """No search runs without a client; and no more than two run at once."""
    plans = Plans(patience_s=3600, search=endless_search)
    first, second, third = [plans.start(PageState.of(SMALL), NONE) for _ in range(3)]

    assert first is not None
    assert second is not None
    assert third is None
    for each in (first, second):
        each.asked_s -= 3600  # when its page last asked
    while not first.is_over:
        time.sleep(0.01)
    assert first.failure == "cancelled"
    with pytest.raises(JobError):
        PageState.of({"x": "y"})


def test_a_search_for_what_is_no_job_is_refused_at_once(server: Server) -> None:
    """Whoever mistyped a name need not wait for a process to start."""
    status, text = server.ask(f"/plans?{urlencode({**START, 'model': 'lama'})}", method="POST")

    assert status == 422
    assert "did you mean" in text


def test_a_search_does_not_read_the_strategy_of_the_controls(server: Server) -> None:
    """Who presses Plan because no strategy fits the controls gets one that does."""
    wrong = urlencode({**START, **SMALL, "tp": "3", "more": "tp: 5"})
    status, text = server.ask(f"/plans?{wrong}", method="POST")
    number = re.search('data-number="([^"]+)"', text)
    assert status == 201
    assert number is not None
    while 'data-over="no"' in text:
        time.sleep(0.2)
        text = server.ask(f"/plans/{number[1]}")[1]

    assert "Best by time" in text


def test_a_framework_that_there_is_not_is_refused(server: Server) -> None:
    """With the nearest that there is."""
    status, text = server.ask("/framework.zip?" + urlencode({**SMALL, "to": "torchtitn"}))
    assert status == 422
    assert "torchtitan" in text
