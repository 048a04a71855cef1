"""The command line as users and scripts meet it: whole transcripts, exit codes, streams."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from cpuinfer.arguments import LIMITS
from cpuinfer.cli import main, options
from cpuinfer.engine.sequence import RANGES

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny.model(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", "Q8_0", context=2048))


def run(*arguments: str, stdin: bytes | None = None, env: dict | None = None, **options) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | (env or {})
    source = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run([sys.executable, "-m", "cpuinfer", *arguments], capture_output=True, env=environment, timeout=300, **source, **options)


GREEDY = ("--temp", "0", "-n", "8", "-c", "256")


def test_run_prints_the_answer_and_nothing_else(model) -> None:
    first, second = run("run", model, "the", *GREEDY), run("run", model, *GREEDY, stdin=b"the\n")
    assert first.returncode == second.returncode == 0
    assert first.stdout == second.stdout and first.stdout.endswith(b"\n")
    assert first.stderr == second.stderr == b""


def tokens(*arguments: str, stdin: str | None = None) -> int:
    """Of the prompt, as run counts them."""
    result = run("run", *arguments, "--json", *GREEDY, stdin=stdin and stdin.encode())
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["prompt_tokens"]


def test_piped_text_follows_the_prompt_after_a_blank_line(model) -> None:
    joined = run("run", model, "the", "and", "--raw", "--json", *GREEDY, stdin=b"in an")
    whole = run("run", model, "the and\n\nin an", "--raw", "--json", *GREEDY)
    assert json.loads(joined.stdout)["tokens"] == json.loads(whole.stdout)["tokens"]


def test_of_piped_text_only_the_end_of_its_last_line_is_no_part_of_the_prompt(model) -> None:
    for piped, prompt in (
        ("the", "the"),
        ("the\n", "the"),
        ("the\r\n", "the"),
        ("\nthe\n\n\n", "\nthe\n\n"),
        ("the \r\n\r\n", "the \r\n"),
        ("\ufeffthe\n", "the"),
        ("the\r", "the\r"),
    ):
        assert tokens(model, stdin=piped) == tokens(model, prompt), piped


def test_raw_drops_nothing_of_piped_text(model) -> None:
    for piped in ("the", "the\n", "the\n\n\n", "\n", "the\r\n", "\ufeffthe"):
        ids = json.loads(run("tokenize", model, "--json", stdin=piped.encode()).stdout)["ids"]
        assert tokens(model, "--raw", stdin=piped) == len(ids), piped


def test_json_has_the_keys_of_the_contract(model) -> None:
    report = json.loads(run("run", model, "the", "--json", *GREEDY).stdout)
    assert set(report) == {"model", "text", "tokens", "finish_reason", "prompt_tokens", "generated_tokens", "timings"}
    assert report["generated_tokens"] == len(report["tokens"]) == 8 and report["finish_reason"] == "length"
    wanted = {"load_s", "compile_s", "prompt_s", "prompt_tokens_per_second", "generate_s", "tokens_per_second", "time_to_first_token_s"}
    assert set(report["timings"]) == wanted


def test_no_prompt_is_wrong_usage(model) -> None:
    result = run("run", model)
    assert result.returncode == 2 and b"prompt" in result.stderr and not result.stdout


@pytest.mark.parametrize(
    "arguments,code",
    [
        (("run", "--nonsense"), 2),
        (("run", "-n", "many", "x"), 2),
        (("frobnicate",), 2),
        (("run", "missing.gguf", "x"), 1),
        (("rm", "nothing"), 1),
        (("pull", "../../etc/passwd"), 1),
        (("pull", "hf:../x"), 1),
    ],
)
def test_errors_are_one_line_with_the_right_code(arguments, code, tmp_path) -> None:
    result = run(*arguments, env={"CPUINFER_HOME": str(tmp_path)})
    assert result.returncode == code, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and b"Traceback" not in result.stderr and not result.stdout


def refused(capsys, *arguments: str) -> str:
    """The one line of a usage error."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    gc.enable()  # the program starts without
    out, errors = capsys.readouterr()
    assert left.value.code == 2 and not out and len(errors.splitlines()) == 1, errors
    return errors


@pytest.mark.parametrize("name", [n for n in options.GENERATION if {n, options.ARGUMENTS.get(n)} & {*RANGES, *LIMITS}])
def test_a_number_out_of_range_is_wrong_usage_told_before_the_model_is_looked_for(name, capsys) -> None:
    _, _, flags, _ = options.GENERATION[name]
    low, high = (RANGES | LIMITS)[options.ARGUMENTS.get(name, name)]
    wrong = [str(low - 1), str(high + 1), "many", ""] + (["nan", "inf"] if isinstance(low, float) else ["1.5"])
    for flag in flags:
        for value in wrong:
            assert flag in refused(capsys, "run", "missing.gguf", "x", flag, value)


@pytest.mark.parametrize(
    "line",
    [
        "run missing.gguf x --cache-type-k q4_0",
        "run missing.gguf x --stop=",
        "chat missing.gguf --top-p 2",
        "compile missing.gguf -t -1",
        "perplexity missing.gguf missing.txt -b 0",
        "perplexity missing.gguf missing.txt -c 3",
        "bench missing.gguf -p -1",
        "bench missing.gguf -n 1,x",
        "bench missing.gguf -d 99999999999",
        "bench missing.gguf -t 5000",
        "bench missing.gguf -b 0",
        "bench missing.gguf -r 0",
    ],
)
def test_options_of_every_command_are_refused_by_name(line, capsys) -> None:
    arguments = line.split()
    assert next(a for a in arguments if a.startswith("-")).rstrip("=") in refused(capsys, *arguments)


def test_a_prompt_longer_than_the_context_names_both_numbers(model) -> None:
    result = run("run", model, "the " * 400, "-c", "64")
    assert result.returncode == 1 and b"context 64" in result.stderr and not result.stdout


def test_a_closed_pipe_ends_quietly(model) -> None:
    command = f'"{sys.executable}" -m cpuinfer run "{model}" the --ignore-eos -c 1024 | head -c1; echo "${{PIPESTATUS[0]}}"'
    result = subprocess.run(["bash", "-c", command], capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120)
    assert result.stderr == b"" and result.stdout[1:].strip() in (b"0",)


def test_an_interrupt_exits_130_without_a_traceback(model) -> None:
    command = [sys.executable, "-m", "cpuinfer", "run", model, "the", "--ignore-eos", "-c", "60000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == b""


def test_input_that_is_not_utf8_is_read_with_a_warning(model) -> None:
    result = run("run", model, "--raw", *GREEDY, stdin=b"the \xff\xfe and")
    assert result.returncode == 0 and result.stderr.count(b"\n") == 1 and b"UTF-8" in result.stderr


def test_it_works_without_a_home_in_the_c_locale_with_stdin_closed(model) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LC_ALL": "C"}
    environment |= {k: v for k, v in os.environ.items() if k.startswith("CPUINFER_")}
    command = f'"{sys.executable}" -m cpuinfer run "{model}" thé --temp 0 -n 4 -c 256 <&-'
    result = subprocess.run(["bash", "-c", command], capture_output=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr


def test_tokenize_shows_ids_and_pieces(model) -> None:
    report = json.loads(run("tokenize", model, "the<s>", "--json").stdout)
    assert report["ids"][0] == 1 and report["ids"][-1] == 1 and len(report["ids"]) == len(report["pieces"])
    plain = json.loads(run("tokenize", model, "the<s>", "--json", "--no-special", "--no-bos").stdout)
    assert 1 not in plain["ids"]


def test_perplexity_reports_what_the_contract_says(model, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the and in an " * 60)
    report = json.loads(run("perplexity", model, str(text), "-c", "64", "--json").stdout)
    assert set(report) == {"perplexity", "stderr", "tokens", "chunks", "context", "tokens_per_second"}
    assert report["tokens"] == report["chunks"] * 31 and report["perplexity"] > 1


def test_bench_reports_what_the_contract_says(model) -> None:
    reports = json.loads(run("bench", model, "-p", "20", "-n", "4", "-d", "0,33", "-r", "2", "-b", "1,3", "--json").stdout)
    assert [(r["test"], r["batch"]) for r in reports] == [("pp20", 1), ("tg4", 1), ("tg4", 3), ("pp20@d33", 1), ("tg4@d33", 1), ("tg4@d33", 3)]
    keys = {"model", "quant", "size_bytes", "parameters", "threads", "isa", "test", "batch", "tokens_per_second", "stddev", "repetitions"}
    assert all(set(r) == keys and r["tokens_per_second"] > 0 for r in reports)
    table = run("bench", model, "-p", "8", "-n", "0", "-r", "1", "--markdown").stdout.decode()
    assert table.startswith("| model |") and "pp8" in table


def test_info_describes_files_that_run_and_files_that_do_not(model, tmp_path) -> None:
    report = json.loads(run("info", model, "--json").stdout)
    assert report["runs"] and report["architecture"] == "llama" and report["tensors"]["Q8_0"]["tensors"] > 5
    other = tiny.model(tmp_path / "x.gguf", "unheard-of", "F32")
    report = json.loads(run("info", str(other), "--json").stdout)
    assert not report["runs"] and "unheard-of" in report["reason"]
    result = run("run", str(other), "x")
    assert result.returncode == 1 and b"unheard-of" in result.stderr and b"llama" in result.stderr


def test_chat_reads_lines_from_a_pipe(model, tmp_path) -> None:
    saved = tmp_path / "c.json"
    lines = f'the\n/stats\n"""\nin\nan\n"""\nand \\\nthe\n/save {saved}\n/regen\n/nope\n/clear\n/load {saved}\n/exit\nnever\n'
    result = run("chat", model, *GREEDY, stdin=lines.encode())
    assert result.returncode == 0 and result.stderr.decode().splitlines() == ["cpuinfer: unknown command /nope; /help lists them"]
    messages = json.loads(saved.read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["the", "in\nan", "and \nthe"]
