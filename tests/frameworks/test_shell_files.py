"""Files of settings that a script writes itself, before it starts what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattree.errors import JobError
from wattree.frameworks import import_recipe

_START = "deepspeed --num_gpus 8 train.py --model_name_or_path qwen3-0.6b --block_size 512"
_MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --seq-length 128 "
    "--num-attention-heads 4 --max-position-embeddings 128 --micro-batch-size 2 --vocab-size 256 "
    "--global-batch-size 64 --fp16 --deepspeed --deepspeed_config"
)
_BODY = """{
  "train_batch_size": $BATCH,  "train_micro_batch_size_per_gpu": $((BATCH / 32)),
  "zero_optimization": {"stage": ${STAGE:-1}, "new": 1}, "fp16": {"enabled": true},
  "wall_clock_breakdown": "${SHOWN}"
}"""
#: As the scripts of Megatron-DeepSpeed and BLOOM have it: variables, and branches.
_DOCUMENT = f"""
BATCH=64
STAGE=2
CONFIG=./ds.$SLURM_JOB_ID.json
if [ "$STAGE" == "3" ]; then
cat <<EOT > $CONFIG
{{"zero_optimization": {{"stage": 3}}}}
EOT
else
cat <<EOT > $CONFIG
{_BODY}
EOT
fi
"""
_TEMPLATE = """
BATCH=64
sed "s/CONFIG_BATCH/${BATCH}/" template.json \\
    | sed "s/CONFIG_STAGE/2/" \\
    > ds_${BATCH}.json
"""
#: No blanks, a path in quotes, what merely looks like a document, and sed at the end of a pipe.
_PIPE = """
. ./sizes.sh
SHIFTED=$((1<<N)) && mkdir -p ds
cat <<EOF|sed 's/BATCH/64/;s/CONFIG_STAGE/2/'>"$PWD/ds"/c.json
{"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": $MICRO,
 "zero_optimization": {"stage": CONFIG_STAGE}, "fp16": {"enabled": true}}
EOF
"""
_IN_PLACE = """
mkdir -p conf && cp template.json ds.json
sed -i -e "s/CONFIG_BATCH/64/" -e "s/CONFIG_STAGE/2/" ds.json
"""
_ARGUMENTS = f"""{_DOCUMENT}
cat > a.yaml <<EOF
model_name_or_path: qwen3-0.6b
block_size: 512
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
fp16: true
deepspeed: ./ds.$SLURM_JOB_ID.json
EOF
torchrun --nproc_per_node 8 train.py a.yaml
"""
_ACCELERATE = """
cat > "a.yaml" <<-'EOF'
distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config: {deepspeed_config_file: ds.json}
EOF
> ds.json
echo '{' >> ds.json
tee -a ds.json > /dev/null << EOF
"zero_optimization": {"stage": 2, "new": 1}, "fp16": {"enabled": true},
 "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
EOF
accelerate launch --config_file a.yaml train.py --model_name_or_path qwen3-0.6b --block_size 512
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deepspeed", f"{_DOCUMENT}{_START} --deepspeed_config $CONFIG"),
        ("deepspeed", f"{_TEMPLATE}{_START} --deepspeed --deepspeed_config ds_$BATCH.json"),
        (
            "hf-trainer",
            f"{_DOCUMENT}{_START} --deepspeed $CONFIG --per_device_train_batch_size 2 "
            "--gradient_accumulation_steps 4 --fp16 2>&1 | tee -a log.json",
        ),
        ("megatron-lm", f"{_DOCUMENT}{_MEGATRON} $CONFIG"),
        ("accelerate", _ACCELERATE),
        ("deepspeed", f"{_PIPE}{_START} --deepspeed_config $PWD/ds/c.json"),
        ("deepspeed", f"{_IN_PLACE}{_START} --deepspeed_config ds.json"),
        ("hf-trainer", _ARGUMENTS),
        # The YAML is there, the JSON that it names is not.
        ("accelerate", _ACCELERATE.replace("a.yaml train", "b.yaml train")),
    ],
)
def test_a_file_is_read_as_the_script_writes_it(name: str, text: str, tmp_path: Path) -> None:
    """There is none before the script runs: ZeRO's stage was unknown, or taken as 0."""
    script = tmp_path / "run.sh"
    script.write_text(text, encoding="utf-8")
    template = '{"train_batch_size": CONFIG_BATCH, "train_micro_batch_size_per_gpu": 2,'
    template += '"zero_optimization": {"stage": CONFIG_STAGE}, "fp16": {"enabled": true}}'
    (tmp_path / "template.json").write_text(template, encoding="utf-8")

    (tmp_path / "sizes.sh").write_text("MICRO=2\n", encoding="utf-8")
    yaml = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    (tmp_path / "b.yaml").write_text(f"num_processes: 8\n{yaml}", encoding="utf-8")

    found = import_recipe(script, name)
    strategy: dict[str, Any] = found.job["strategy"]

    assert (strategy["sharding"], strategy["micro_batch"]) == ("zero2", 2)
    assert (found.job["data"]["global_batch"], found.job["precision"]) == (64, "fp16")
    assert any("as the script writes it" in note for note in found.assumed)
    open_ = any("as only a shell fills it in: ${SHOWN}" in note for note in found.assumed)
    assert open_ == ("SHOWN" in text)
    is_whole = '"new"' in text and name != "megatron-lm"
    assert found.not_understood == (("zero_optimization.new",) if is_whole else ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python make.py > ds.json", "ds.json is written by 'python make.py > ds.json', which is"),
        ("python - <<EOF > ds.json\nprint({})\nEOF", "'python - <<… > ds.json', which is not run"),
        ("echo '{}' > ds.json\npython a.py > ds.json\necho '{}' >> ds.json", "'python a.py > ds"),
        # What sed changes by patterns, and text of commands, are not read as they were before.
        ("echo '{\"a\": 1}' | sed 's/[0-9]/2/' > ds.json", "ds.json is written by 'echo"),
        ("echo '{\"a\": 1}' > ds.json\nsed -i 's/[0-9]/2/' ds.json", "is written by 'sed -i"),
        ('TEXT=$(cat a)\necho "$TEXT" > ds.json', "ds.json is written by 'echo"),
        ("cat <<EOF > ds.json\n{stage\nEOF", "run.sh: ds.json: line 1, column 2"),
        ("cat <<EOF > ds.json\n[]\nEOF", "found an empty list, expected an object"),
        ("", "ds.json: there is no such file"),
    ],
)
def test_what_is_not_read_is_named(text: str, words: str, tmp_path: Path) -> None:
    """With the command that writes it, or the place in it."""
    script = tmp_path / "run.sh"
    script.write_text(f"{text}\n{_START} --deepspeed_config ds.json\n", encoding="utf-8")

    with pytest.raises(JobError) as caught:
        import_recipe(script, "deepspeed")
    assert words in str(caught.value)


def test_a_branch_that_decides_on_a_file_is_listed(tmp_path: Path) -> None:
    """The first is taken where nothing in the script decides, which a user has to know."""
    text = 'if [ "$MODE" = big ]; then\n{}\nelse\n{}\nfi\n'.format(
        *(f"cat <<EOF > ds.json\n{_BODY.replace('${STAGE:-1}', stage)}\nEOF" for stage in "32")
    )
    script = tmp_path / "run.sh"
    script.write_text(f"BATCH=64\n{text}{_START} --deepspeed_config ds.json", encoding="utf-8")

    found = import_recipe(script, "deepspeed")

    assert found.job["strategy"]["sharding"] == "zero3"
    assert 'taken as true: [ "$MODE" = big ]' in found.assumed


def test_a_file_without_a_stage_shards_nothing(tmp_path: Path) -> None:
    """Whatever Megatron-DeepSpeed's flag says: DeepSpeed reads its file alone."""
    script = tmp_path / "run.sh"
    text = "echo '{\"train_batch_size\": 64}' > ds.json"
    script.write_text(f"{text}\n{_MEGATRON} ds.json --zero-stage 1", encoding="utf-8")

    assert import_recipe(script, "megatron-lm").job["strategy"]["sharding"] == "none"


def test_a_file_that_is_there_is_read_as_it_was_found(tmp_path: Path) -> None:
    """With the command that changes it, by which a user sees which value may be another one."""
    config = '{"train_batch_size": 8, "zero_optimization": {"stage": 1}}'
    (tmp_path / "ds.json").write_text(config, encoding="utf-8")
    script = tmp_path / "run.sh"
    edit = """sed -i "s/\\"stage\\":.*$/\\"stage\\": 2/" ds.json"""
    script.write_text(f"{edit}\n{_START} --deepspeed_config ds.json", encoding="utf-8")

    found = import_recipe(script, "deepspeed")

    assert found.job["strategy"]["sharding"] == "zero1"
    assert found.assumed[0] == f"ds.json is as it was found: '{edit}', which writes it, is not run"
