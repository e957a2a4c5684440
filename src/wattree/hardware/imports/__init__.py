"""Topologies written by other tools: NCCL's XML, and the table of nvidia-smi."""
