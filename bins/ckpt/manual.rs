//! The last sections of the manual page.

pub const MANUAL: &str = "\
EXIT STATUS
  0   Done. For verify: all checkpoints are good. For diff: they differ only in when, where (host, attempt,
      number of ranks, version) and how fast they were made.
  1   For diff: the checkpoints differ. For export: the files would not be the model that was trained.
  2   The command line is wrong.
  65  A checkpoint or file of weights is damaged, of a newer format, or of another model.
  66  There is no checkpoint, or it cannot be read.
  73  The output already exists, or cannot be created.
  74  Reading or writing failed midway.
  75  Another process is working on the run; repeat prune or adopt after it has ended.

EXAMPLES
  List the checkpoints:
    $ ckpt ls runs/codec
  Show the newest, with statistics of the weights of its decoder:
    $ ckpt show runs/codec --pattern 'decoder.*.weight'
  Verify a checkpoint:
    $ ckpt verify runs/codec/ckpt/best
  Verify all checkpoints of all runs, as JSON:
    $ ckpt verify runs/* --json
  How far the last updates changed the weights:
    $ ckpt diff runs/codec/ckpt/best runs/codec --json || test $? = 1
  The mean of two checkpoints, the second with twice the weight:
    $ ckpt average runs/codec/ckpt/best runs/codec/ckpt/latest --weights 1,2 -o mean
  The optimizer state in four files:
    $ ckpt reshard runs/codec --shards 4 -o resharded
  Export the weights; import them, removing a prefix that another program added to the names:
    $ ckpt export runs/codec -o codec.safetensors
    $ ckpt import codec.safetensors --like runs/codec --map 'module.*=*' -o imported
  Import a checkpoint of LGDLM, by name. A run of one update supplies the options of its model, such as those of
  configs/cycle-vae-cluster.yaml (kind: manifold for version 0.3 of the package mmdit, plain for 0.2):
    $ train-stage cycle-vae -c lgdlm.yaml -s training.updates=1 --run runs/like
    $ ckpt import latest.pt --like runs/like -o lgdlm
  Fine-tune a Hugging Face transformers encoder, here in the folder pretrained, and export the result as a folder
  that transformers loads:
    $ ckpt config pretrained > encoder.yaml
    $ ds-prep tokenize split.json --tokenizer pretrained --max-length 64 -o tokens
    $ train-stage classify -c classify.yaml -c encoder.yaml --run runs/tuned
    $ ckpt export runs/tuned --format hf -o model
  The same with LoRA: training changes only small matrices and the head, which PEFT loads on top of the pretrained model:
    $ LORA='model.lora={r: 4, targets: [query, value]}'
    $ train-stage classify -c classify.yaml -c encoder.yaml -s \"$LORA\" --run runs/lora
    $ ckpt export runs/lora --format peft -o adapter
  The same with the pretrained layers in 4 bits, a third of the memory for a model such as bert-base, and the state of the
  optimizer in 8:
    $ ckpt quantize pretrained -o pretrained-nf4
    $ ckpt config pretrained-nf4 > nf4.yaml
    $ ADAMW='optimizer.method={kind: adamw8bit}'
    $ train-stage classify -c classify.yaml -c nf4.yaml -s \"$LORA\" -s \"$ADAMW\" --run runs/qlora
  Fine-tune a decoder for conversations, here in the folder qwen, with LoRA on layers in 4 bits; export it as a folder that
  transformers loads, and as an adapter for PEFT:
    $ ckpt quantize qwen -o qwen-nf4
    $ ckpt config qwen-nf4 > qwen.yaml
    $ ds-prep tokenize chats.json --tokenizer qwen --max-length 96 -o chat-tokens
    $ QLORA='model.lora={r: 16, targets: all-linear}'
    $ train-stage sft -c sft.yaml -c qwen.yaml -s data.tokens=chat-tokens -s \"$QLORA\" --run runs/chat
    $ ckpt export runs/chat --format hf -o assistant
    $ ckpt export runs/chat --format peft -o assistant-adapter
  Recover complete checkpoints after a machine died:
    $ ckpt adopt runs/codec
  Show what prune would remove, then remove it:
    $ ckpt prune runs/codec --keep-last 1 --keep-best 1 --dry-run
    $ ckpt prune runs/codec --keep-last 1 --keep-best 1

SEE ALSO
  longhaul-files(5), train-stage(1), evaluate(1), longhaul(7), longhaul-recovery(7)
";
