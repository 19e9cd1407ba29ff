# The settings of https://github.com/NVIDIA/Megatron-LM/blob/main/examples/llama/train_llama3_8b_h100_fp8.sh
TP_SIZE=1
SEQ_LENGTH=8192
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length $SEQ_LENGTH --max-position-embeddings $SEQ_LENGTH
    --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0
    --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --attention-backend fused
    --apply-layernorm-1p --untie-embeddings-and-output-weights --disable-bias-linear
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 128 --lr 0.00015 --bf16 --grad-reduce-in-bf16
               --cross-entropy-loss-fusion --manual-gc --decoupled-lr 5.0e-4)
DTYPE_ARGS=()
DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024" "--fp8-param-gather")
TRAINING_ARGS+=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
DATA_ARGS=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256")
torchrun --nproc_per_node 8 --nnodes ${NUM_NODES:-1} pretrain_gpt.py \
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${DTYPE_ARGS[@]} ${DATA_ARGS[@]} \
    --tensor-model-parallel-size $TP_SIZE --context-parallel-size 1 --sequence-parallel
