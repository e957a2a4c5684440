"""The page to plan with, in a real browser, and what others may not do to its server."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from hypothesis import given, settings
from hypothesis import strategies as st

import wattree
from tests.browser import needs_chromium
from wattree.errors import JobError, WattreeError
from wattree.files import yaml_of
from wattree.search import Plan
from wattree.serve.plans import Plans
from wattree.serve.state import START, PageState, choices
from wattree.strategy import StrategyOptions

SMALL = {"model": "gpt2", "node": "dgx-a100", "sequence_length": "1024", "global_batch": "64"}
NONE: dict[str, Path] = {}


class Server:
    """A running `wattree serve`.

    Attributes:
        address: With its token.
        base: Without.
    """

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address
        self.base = address.partition("/?")[0]
        self.token = parse_qs(urlsplit(address).query)["token"][0]
        self.port = int(urlsplit(address).port or 0)

    def ask(
        self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, str]:
        """Return status and text of an answer."""
        named = {
            "X-Wattree-Token": self.token,
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        request = urllib.request.Request(self.base + path, data=body, method=method, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start a server on a free port, and end it as Ctrl-C does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wattree", "serve", "--no-browser", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    assert process.stderr is not None
    address = ""
    while not address:
        line = process.stderr.readline()
        assert line, "the server ended before it served"
        found = re.search(r"http://\S+", line)
        address = found.group() if found else ""
    made = Server(process, address)
    yield made
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) in {0, -signal.SIGINT, 130}
    process.stderr.close()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """Return the page; whatever goes wrong in it fails the test."""
    wrong: list[str] = []
    found = browser.new_page(viewport={"width": 1360, "height": 900})
    found.set_default_timeout(120_000)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("request", lambda each: each.url.startswith(server.base) or wrong.append(each.url))
    found.goto(server.address)
    yield found
    found.close()
    assert not [each for each in wrong if not each.startswith("data:")]


def test_a_state_is_a_job_and_its_file_says_the_same() -> None:
    """What is taken along predicts what the page showed."""
    state = PageState.of({**START, "nodes": "2", "tp": "2", "more": "bucket: 50 MiB"})
    job = state.job(NONE)
    from wattree.files import yaml_of

    again = wattree.job_from_mapping(yaml_of(state.yaml(NONE), "file"))
    assert job.cluster.nodes == 2
    assert wattree.estimate(job) == wattree.estimate(again)


def test_strategies_of_a_plan_go_into_the_controls_and_come_back() -> None:
    """'Use' shows the figures of the row it stands in."""
    state = PageState.of({**SMALL, "nodes": "2", "software": "megatron-core"})
    plan = wattree.plan(state.job(NONE), top=6)
    for idea in plan.ideas:
        chosen = state.with_options(idea[0].options)
        again = PageState.of(chosen.values)
        step = wattree.simulate(again.job(NONE)).result
        assert step.step_time_s == pytest.approx(idea[0].result.step_time_s, rel=1e-9)


def test_a_degree_moves_after_a_strategy_of_a_plan_was_used() -> None:
    """Data parallelism takes what the other degrees leave, as before the plan."""
    state = PageState.of({**SMALL, "nodes": "2", "software": "megatron-core"})
    options = wattree.plan(state.job(NONE), top=1).ideas[0][0].options
    used = state.with_options(options.changed(dp=8, tp=2, cp=1, pp=1)).values
    job = PageState.of({**used, "tp": "4"}).job(NONE)

    assert "dp" not in used.get("more", "")
    assert isinstance(job.strategy, StrategyOptions)
    assert job.strategy.dp == 4


def test_degrees_that_do_not_fit_the_others_cannot_be_chosen() -> None:
    """Eight devices are no four stages of four."""
    found = choices(PageState.of({**START, "tp": "4"}), NONE)
    why = {choice.value: choice.why_not for choice in found["pp"]}

    assert why == {
        "1": "",
        "2": "",
        "4": "16 ranks do not divide 8 devices",
        "8": "32 ranks do not divide 8 devices",
    }


@pytest.mark.parametrize(
    "values",
    [
        {"model": "meta-llama/Llama-3.1-8B"},
        {"model": "Llama-3.1-8B"},
        {"node": "DGX H100"},
        {"node": "1x-rtx-4090"},
        {"site": "Sweden"},
    ],
)
def test_names_are_taken_as_in_a_job(values: dict[str, str]) -> None:
    """Aliases, capitals, and nodes of some number of a card."""
    state = PageState.of({**START, **values})
    again = wattree.job_from_mapping(yaml_of(state.yaml(NONE), "file"))

    assert wattree.estimate(state.job(NONE)) == wattree.estimate(again)


def test_adapters_on_frozen_weights_can_be_chosen() -> None:
    """LoRA and QLoRA, of which remedies speak."""
    of_cards = {"node": "2x-rtx-4090", "software": "hf-trainer", "sharding": "none"}
    rank = {"lora_rank": "16"}
    states = [of_cards, of_cards | rank, of_cards | rank | {"lora_base": "nf4"}]
    jobs = [PageState.of({**START, **values}).job(NONE) for values in states]
    whole, lora, quantized = (wattree.estimate(job).memory.peak_bytes for job in jobs)

    assert whole > lora > quantized
    assert yaml_of(PageState.of({**START, **states[2]}).yaml(NONE), "file")["model"] == {
        "name": "llama-3.1-8b",
        "lora": {"rank": 16, "base": "nf4"},
    }


def test_what_the_software_lacks_cannot_be_chosen() -> None:
    """Torchtitan has no ZeRO-1."""
    found = choices(PageState.of(START), NONE)
    why = {choice.value: choice.why_not for choice in found["sharding"]}

    assert "torchtitan" in why["zero1"]
    assert not why["zero3"]
    assert [choice.value for choice in found["tp"]] == ["1", "2", "4", "8"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "no-such"}, "expected a name of the catalog"),
        ({"model": "llama-3.1-8"}, "did you mean 'llama-3.1-8b'?"),
        ({"model": ""}, "model: is missing, expected a name of the catalog"),
        ({"model": "/etc/passwd"}, "expected a name of the catalog"),
        ({"model": "evil.py:build"}, "expected a name of the catalog"),
        ({"node": "../x.yaml"}, "expected a name of the catalog"),
        ({"wrong": "1"}, "unknown"),
        ({"more": "x" * 5000}, "more than 4000 characters"),
        ({"more": "[1, 2"}, "further keys"),
        ({"more": "!!python/object/apply:os.system [ls]"}, "further keys"),
        ({"more": "tp: 2"}, "tp: has a control of its own"),
        ({"nodes": "-3"}, "cluster.nodes"),
        ({"tp": "3"}, "strategy"),
    ],
)
def test_what_is_no_job_is_refused_in_words(values: dict[str, str], words: str) -> None:
    """The address of a page is text from anywhere."""
    with pytest.raises(WattreeError, match=re.escape(words)):
        wattree.estimate(PageState.of({**START, **values}).job(NONE))


@given(st.dictionaries(st.sampled_from([*START, "more", "x"]), st.text(max_size=30), max_size=6))
@settings(max_examples=60, deadline=None)
def test_any_address_is_a_job_or_refused(server: Server, values: dict[str, str]) -> None:
    """Nothing that stands in an address is a defect of the server."""
    status, text = server.ask(f"/figures?{urlencode({**START, **values})}")

    assert status in {200, 422}
    assert "Traceback" not in text


def test_who_has_no_token_or_comes_from_elsewhere_learns_nothing(server: Server) -> None:
    """Other sites in the same browser, names that lead here, and guesses."""
    assert server.ask("/", X_Wattree_Token="guess")[0] == 401
    assert server.ask("/?token=guess", X_Wattree_Token="")[0] == 401
    assert server.ask("/", Host="evil.example")[0] == 421
    assert server.ask("/plans", method="POST", Origin="http://evil.example")[0] == 403
    assert server.ask("/files?name=a.json", Content_Length=f"{1 << 21}")[0] == 413
    assert server.ask(f"/plans/{server.port}")[0] == 422
    assert server.ask("/")[0] == 200


def test_noise_on_the_port_does_not_end_the_server(server: Server) -> None:
    """Whatever is sent costs a connection."""
    draws = [
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ]
    draws += [b"G" * 70_000, b"GET /%ff%00 HTTP/1.1\r\nHost: a\r\n\r\n", b"\r\n" * 500]
    for draw in draws * 20:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
            try:
                peer.sendall(draw)
            except OSError:
                continue
    assert server.ask("/")[0] == 200


def test_a_second_server_on_the_port_says_so(server: Server) -> None:
    """It does not take the page of the first."""
    words = [sys.executable, "-m", "wattree", "serve", "--no-browser", "--port", str(server.port)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    assert found.returncode == 2
    assert "is in use" in found.stderr


def test_a_file_of_ones_own_is_parsed_and_used(server: Server) -> None:
    """A `config.json` that was uploaded is a model of the page; what is none is refused."""
    config = {
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 1000,
        "num_attention_heads": 8, "intermediate_size": 1024, "max_position_embeddings": 1024,
    }  # fmt: skip
    body = json.dumps(config).encode()
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
    config = {
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 1000,
        "num_attention_heads": 8, "intermediate_size": 1024, "max_position_embeddings": 1024,
    }  # fmt: skip
    body = json.dumps(config).encode()
    _, label = server.ask("/files?name=own.json", method="POST", body=body)
    state = {**SMALL, "model": label, "micro_batch": "1", "software": "hf-trainer"}
    _, refused = server.ask(f"/figures?{urlencode({**state, 'sequence_length': '4096'})}")
    address = f"{server.base}/framework.zip?{urlencode({**state, 'to': 'hf-trainer'})}"
    asked = urllib.request.Request(address, headers={"X-Wattree-Token": server.token})
    with urllib.request.urlopen(asked, timeout=120) as answer:
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

    assert re.search(r"Cost per step</th><td>\$[^<]*</td><td>–</td>", text)
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
    ended = threading.Event()

    def search(job: wattree.Job, *, progress: Callable[[str, int, int], None]) -> Plan:
        del job
        try:
            while True:
                progress("screening", 1, 2)
                time.sleep(0.01)
        finally:
            ended.set()

    job = PageState.of(SMALL).job(NONE)
    plans = Plans(patience_s=0.2)
    first = plans.start(job, search=search)
    second = plans.start(job, search=search)
    third = plans.start(job, search=search)

    assert first is not None
    assert second is not None
    assert third is None
    assert ended.wait(timeout=60)
    while not first.is_over:
        time.sleep(0.01)
    assert first.failure == "cancelled"
    with pytest.raises(JobError):
        PageState.of({"x": "y"})


@needs_chromium
def test_figures_follow_a_change_and_the_address_holds_it(page: Any) -> None:
    """A control is moved, and all figures are new."""
    before = page.inner_text("#figures")
    page.select_option("[name=recompute]", "full")
    page.wait_for_function(
        "text => document.getElementById('figures').innerText !== text", arg=before
    )

    assert "recompute=full" in page.url
    assert page.get_attribute("#job-file", "href").endswith(
        "recompute=full"
    ) or "recompute=full" in (page.get_attribute("#job-file", "href"))
    page.reload()
    assert page.input_value("[name=recompute]") == "full"


@needs_chromium
def test_from_start_to_a_ranked_plan_a_step_and_a_comparison(page: Any) -> None:
    """What a first user does."""
    page.click("#plan")
    page.wait_for_selector("[data-over=yes]")
    assert "Best by time" in page.inner_text("#plans")
    assert "the runner-up" in page.inner_text("#plans")
    assert "Best by time" in page.locator("#heard").text_content()
    page.emulate_media(media="print")
    assert "choose" not in page.inner_text("#plans")  # paper has no buttons
    page.emulate_media(media="screen")
    page.click("#keep")
    page.wait_for_selector("#compared table")
    page.click("#plans [data-use] >> nth=1")
    page.wait_for_function("() => document.querySelector('[name=tp]').value !== '1'")
    page.click("#keep")
    page.wait_for_function("() => document.querySelectorAll('#compared [data-drop]').length === 2")
    page.click("#open")
    page.wait_for_selector("#step svg")
    assert "Where the step goes" in page.inner_text("#step")


@needs_chromium
def test_files_of_a_framework_are_saved_or_what_it_cannot_express_is_said(page: Any) -> None:
    """The framework of the software is chosen; its launch script may be run."""
    assert page.input_value("#framework") == "torchtitan"
    with page.expect_download() as saving:
        page.click("#take")
    with zipfile.ZipFile(saving.value.path()) as archive:
        modes = {each.filename: each.external_attr >> 16 for each in archive.infolist()}
    assert saving.value.suggested_filename == "torchtitan.zip"
    assert modes["torchtitan/launch.sh"] & 0o111
    assert any(name.endswith(".toml") for name in modes)

    page.select_option("#framework", "maxtext")
    page.click("#take")
    page.wait_for_selector("#taken [role=alert]")


def test_a_framework_that_there_is_not_is_refused(server: Server) -> None:
    """With the nearest that there is."""
    status, text = server.ask("/framework.zip?" + urlencode({**SMALL, "to": "torchtitn"}))
    assert status == 422
    assert "torchtitan" in text


@needs_chromium
def test_a_search_can_be_cancelled(page: Any) -> None:
    """A large one takes long enough to press the button."""
    page.fill("[name=nodes]", "512")
    page.fill("[name=global_batch]", "4096")
    page.click("#plan")
    page.focus("#cancel")
    box = page.locator("#cancel").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.wait_for_function("() => document.querySelector('progress').max > 1")
    page.mouse.up()  # progress was drawn anew, and the button is the one that was pressed
    page.wait_for_selector("[data-over=yes]")

    assert "cancelled" in page.inner_text("#plans")
    assert page.evaluate("document.activeElement.textContent") == "Plan"


@needs_chromium
def test_without_its_server_the_page_keeps_what_was_chosen(page: Any) -> None:
    """It says so where the figures stood, and goes on when the server is back."""
    parts = re.compile("/(figures|controls)")
    page.route(parts, lambda route: route.abort())
    page.select_option("[name=recompute]", "full")
    page.wait_for_selector("#figures [role=alert]")
    assert "does not answer" in page.inner_text("#figures")
    page.unroute(parts)
    with page.expect_response(re.compile("/controls")):
        page.select_option("[name=sharding]", "zero2")

    assert page.input_value("[name=recompute]") == "full"


@needs_chromium
def test_what_is_chosen_by_software_and_file_follows(page: Any, tmp_path: Path) -> None:
    """The framework of the software; and why a file is refused, line by line."""
    with page.expect_response(re.compile("/controls")):
        page.select_option("[name=software]", "hf-trainer")
    page.wait_for_function("() => document.getElementById('framework').value === 'hf-trainer'")
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": -5}', encoding="utf-8")
    page.set_input_files("#file", path)
    page.wait_for_function("() => document.getElementById('file-hint').innerText.includes('; ')")

    assert page.inner_text("#file-hint").startswith("config.json: hidden_size: found -5")


@needs_chromium
def test_the_page_breaks_no_rule_of_access_and_fits_every_width(page: Any) -> None:
    """axe-core's rules, light and dark, with a plan, a step and a mistake on the page."""
    page.click("#plan")
    page.wait_for_selector("[data-over=yes]")
    page.click("#open")
    page.wait_for_selector("#step svg")
    page.fill("[name=global_batch]", "7")
    page.wait_for_selector("#figures [role=alert]")
    found = []
    for width in (1360, 800, 390):
        page.set_viewport_size({"width": width, "height": 900})
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        found += [f"{wide} px too wide at {width}"] * (wide > 0)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        broken = Axe().run(page).response["violations"]
        found += [f"{scheme}: {rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in broken]

    assert not found
