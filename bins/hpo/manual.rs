//! The sections of the hpo manual that follow the options.

/// Sections after the options.
pub const MANUAL: &str = "\
EXIT STATUS
  0   Done. For worker: all trials have ended.
  1   For worker: the first three trials failed, so the cause is probably not the parameters. For ask: no trial is
      left. For best and refit: no trial is complete. For refit: a seed or a test failed.
  2   The command line is wrong, or there is no such trial or round.
  65  The file to import has another format or direction.
  66  The study, its configuration, or the program of its command is missing; or no trial has ended that could be
      drawn.
  73  A file cannot be written, or the folder holds another study.
  74  Reading or writing failed.
  75  Trials remain: run the same command again. For ask and refit: the trials of a round have not ended.
  78  The configuration is wrong.

ENVIRONMENT
  HPO_STUDY, HPO_TRIAL
      Folder of the study and number of the trial, for the command of a worker's trial.

EXAMPLES
  Data, and a small search for the learning rate and the width of a codec:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 128 --frames 11 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o split.json
    $ ds-prep stats split.json
    $ train-stage codec --example > codec.yaml
    $ hpo new --example > study.yaml
    $ hpo new search -c study.yaml
    $ hpo worker search
    $ hpo status search
    $ hpo trials search
  Which parameters matter, and the value of each trial, by step and against each parameter:
    $ hpo importance search
    $ hpo plot search
    $ hpo plot search -o search.png
  The best configuration, and a run with it:
    $ hpo best search > best.yaml
    $ train-stage codec -c codec.yaml -c best.yaml -s training.updates=80 --run best
  A search that begins with what another one found:
    $ hpo export search --format optuna -o search.log
    $ hpo new second -c study.yaml -s seed=2
    $ hpo import second search.log
  The mean and spread of that configuration over seeds, with errors on the test split:
    $ hpo refit search --seeds 2
  A search of another program, which reports its values itself:
    $ printf '%s\\n' 'command: [sh, evaluate.sh, \"{x}\"]' 'metric: loss' 'trials: 5' \\
    >   'space: {x: {kind: float, low: 0, high: 4}}' > other.yaml
    $ echo 'hpo tell $HPO_STUDY $HPO_TRIAL $(echo \"$1\" | tr . 0)' > evaluate.sh
    $ hpo new other -c other.yaml
    $ hpo worker other
    $ hpo export other --format csv -o other.csv
  A trial that this shell runs:
    $ hpo new mine -c other.yaml
    $ hpo ask mine --json > asked.json
    $ hpo tell mine 0 0.25 --step 1
    $ hpo tell mine 0 0.125 --final

SEE ALSO
  longhaul-study(5), train-stage(1), timekeep(1), longhaul-slurm(7), longhaul(7)
";
