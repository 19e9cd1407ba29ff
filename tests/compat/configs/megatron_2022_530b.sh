# The settings of arXiv 2205.05198, tables 3 and 4: 530b
GPUS=8
NODES=35
MODEL=(
    --num-layers 105
    --hidden-size 20480
    --num-attention-heads 128
    --seq-length 2048
    --max-position-embeddings 2048
)
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py "${MODEL[@]}" \
    --micro-batch-size 1 --global-batch-size 280 \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 35 --fp16 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path $1 \
    --lr 0.00015 --lr-decay-style cosine --clip-grad 1.0 --DDP-impl local --sequence-parallel --recompute-activations --num-layers-per-virtual-pipeline-stage 1
