//! The last sections of the manual page.

pub const MANUAL: &str = "\
EXIT STATUS
  0   Finished, now or earlier.
  1   Diverged: the loss or gradient was not finite too often, or there were too many spikes. Or several
      attempts made no progress. With --verify-determinism, a tensor differs.
  2   The command line is wrong.
  65  An input file is not what its manifest or index recorded, or a checkpoint is damaged.
  66  The data is missing.
  73  The run directory cannot be written, or saves keep failing because it became read-only.
  74  Reading or writing failed, or too many consecutive saves did (checkpoint.failed_saves). Or the run
      directory was moved, removed or replaced during the run.
  75  Stopped with a checkpoint, or another process holds the run. Run the same command again; if the
      message blames the machine, run it on another one.
  78  The configuration is wrong, or configuration or data differ from those of the checkpoint.

CHECKS
  --check examines every point, whatever fails, and prints a table: the point, its result and what was found; with
  --json, an object for each point. An estimate of the run follows. A result is ok, warning (the run starts, but
  perhaps not as intended), failed, or skipped (the point depends on one that failed). All problems are on stderr,
  and the exit status is that of the first; that of warnings is 0.
  configuration      The task, and the name of the run.
  data, input files  Number of samples; whether the content of every file is what was recorded.
  samples            Batches of the first sample, the last one and three between them.
  tokenizer, images  For sft: the special tokens; whether images decode and have as many patches as tokens, of all records with
      images or of 256 spread over them.
  initial values     Whether init.from has all parameters, in the right shapes, and how many of them in 4 bits.
  resume             Whether the newest checkpoint of the run is good, and made with this configuration and data.
  run directory      Whether a file can be written, synchronised and removed.
  device             What the run computes on, and in which precision; on the CPU, the measured rates of products of f32 and bf16.
  memory             Whether an update fits into the memory that is free.
  disk space         Whether all checkpoints that are kept at once fit.
  cost               Time and cost with --on, and what cost.budget pays for, as far as prices are known.

EXAMPLES
  A data set:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 128 --frames 11 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o split.json
    $ ds-prep stats split.json
  A small configuration to start from, and all keys:
    $ train-stage codec --example > codec.yaml
    $ train-stage codec --help
  Check for problems, and estimate time and memory:
    $ train-stage codec -c codec.yaml --run codec --check
    $ train-stage codec -c codec.yaml --run codec --dry-run
  Estimate both on GPUs that are not here, or whether it fits into a GPU with 24 GB:
    $ train-stage codec -c codec.yaml --run codec --dry-run --on h100:2
    $ train-stage codec -c codec.yaml --run codec --dry-run --on 24GB
    $ train-stage codec -c codec.yaml --run codec --check --on h100
  Train three times for 50 updates and compare the bits:
    $ train-stage codec -c codec.yaml --verify-determinism
  Train for 100 updates; the second command finds the run finished:
    $ train-stage codec -c codec.yaml -s training.updates=100 --run codec
    $ train-stage codec -c codec.yaml -s training.updates=100 --run codec
  Continue it in another directory for 10 more updates, from its newest checkpoint or another one:
    $ longer='-s training.updates=110 --accept-config-change'
    $ train-stage codec -c codec.yaml $longer --run longer --resume codec
    $ train-stage codec -c codec.yaml $longer --run longer-too --resume codec/ckpt/step-00000100
  Start from its weights alone, of the best checkpoint or another one: a new optimizer, update 0:
    $ fresh='-s training.updates=60'
    $ train-stage codec -c codec.yaml $fresh -s init.from=codec --run tuned
    $ train-stage codec -c codec.yaml $fresh -s init.from=codec/ckpt/latest --run tuned-too
  A model of your own arrays: see REGRESSION ON YOUR OWN ARRAYS in longhaul(7).
  A pretrained encoder or decoder, whole or with LoRA on weights in 4 bits: see EXAMPLES in ckpt(1).

SEE ALSO
  longhaul-config(5), longhaul-files(5), latent-cache(1), evaluate(1), ckpt(1), timekeep(1), longhaul(7),
  longhaul-recovery(7), longhaul-slurm(7)
";
