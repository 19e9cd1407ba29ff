# The settings of arXiv 2104.04473, table 1: 39b
GPUS=8
NODES=64
MODEL=(
    --num-layers 48
    --hidden-size 8192
    --num-attention-heads 64
    --seq-length 2048
    --max-position-embeddings 2048
)
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py "${MODEL[@]}" \
    --micro-batch-size 4 --global-batch-size 1536 \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --fp16 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path $1 \
    --lr 0.00015 --lr-decay-style cosine --clip-grad 1.0 --DDP-impl local --activations-checkpoint-method uniform
