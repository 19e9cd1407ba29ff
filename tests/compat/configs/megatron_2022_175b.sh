# The settings of arXiv 2205.05198, tables 3 and 4: 175b
GPUS=8
NODES=8
MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
)
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py "${MODEL[@]}" \
    --micro-batch-size 1 --global-batch-size 64 \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --fp16 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path $1 \
    --lr 0.00015 --lr-decay-style cosine --clip-grad 1.0 --DDP-impl local --sequence-parallel --recompute-activations --num-layers-per-virtual-pipeline-stage 4
