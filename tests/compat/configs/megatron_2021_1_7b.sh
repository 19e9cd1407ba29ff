# The settings of arXiv 2104.04473, table 1: 1_7b
GPUS=8
NODES=4
MODEL=(
    --num-layers 24
    --hidden-size 2304
    --num-attention-heads 24
    --seq-length 2048
    --max-position-embeddings 2048
)
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py "${MODEL[@]}" \
    --micro-batch-size 16 --global-batch-size 512 \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --fp16 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path $1 \
    --lr 0.00015 --lr-decay-style cosine --clip-grad 1.0 --DDP-impl local --activations-checkpoint-method uniform
