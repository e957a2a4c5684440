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
_ACCELERATE = """
cat > "a.yaml" <<-'EOF'
distributed_type: DEEPSPEED
num_processes: 8
deepspeed_config: {deepspeed_config_file: ds.json}
EOF
echo '{' > ds.json
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
            "--gradient_accumulation_steps 4 --fp16",
        ),
        ("megatron-lm", f"{_DOCUMENT}{_MEGATRON} $CONFIG"),
        ("accelerate", _ACCELERATE),
    ],
)
def test_a_file_is_read_as_the_script_writes_it(name: str, text: str, tmp_path: Path) -> None:
    """There is none before the script runs: ZeRO's stage was unknown, or taken as 0."""
    script = tmp_path / "run.sh"
    script.write_text(text, encoding="utf-8")
    template = '{"train_batch_size": CONFIG_BATCH, "train_micro_batch_size_per_gpu": 2,'
    template += '"zero_optimization": {"stage": CONFIG_STAGE}, "fp16": {"enabled": true}}'
    (tmp_path / "template.json").write_text(template, encoding="utf-8")

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
