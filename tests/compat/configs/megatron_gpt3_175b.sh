# The settings of https://github.com/NVIDIA/Megatron-LM/blob/main/examples/gpt3/train_gpt3_175b_distributed.sh
GPUS=8
NODES=1
MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
)
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py "${MODEL[@]}" \
    --micro-batch-size 1 --global-batch-size 1536 \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --fp16 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path $1 \
    --lr 0.00015 --lr-decay-style cosine --clip-grad 1.0 --rampup-batch-size 16 16 5859375 --attention-backend auto
