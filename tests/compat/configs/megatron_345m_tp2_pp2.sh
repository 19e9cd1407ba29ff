# The settings of https://github.com/NVIDIA/Megatron-LM/blob/v2.5/examples/pretrain_gpt_distributed_with_mp.sh
GPUS=8
NODES=1
MODEL=(
    --num-layers 24
    --hidden-size 1024
    --num-attention-heads 16
    --seq-length 1024
    --max-position-embeddings 1024
)
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py "${MODEL[@]}" \
    --micro-batch-size 4 --global-batch-size 16 \
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --fp16 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path $1 \
    --lr 0.00015 --lr-decay-style cosine --clip-grad 1.0 --sequence-parallel
