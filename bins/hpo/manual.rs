//! The sections of hpo(1) that follow the options.

/// Sections after the options.
pub const MANUAL: &str = "\
EXIT STATUS
  0   Done. For worker: all trials have ended.
  1   For worker: the first three trials all failed, so the cause is probably not the parameters. For ask: no trials
      remain. For best and refit: no trial is complete. For refit: a seed or a test failed.
  2   The command line is wrong, or there is no such trial or round.
  65  The file to import has an unknown format or the opposite direction.
  66  The study, its configuration or the program of its command is missing; or too few trials have ended for plot
      or importance.
  73  A file cannot be written, or the folder holds another study.
  74  Reading or writing failed.
  75  Trials remain: run the same command again. For ask and refit: a round has trials that have not ended.
  78  The configuration is wrong.

ENVIRONMENT
  HPO_STUDY, HPO_TRIAL
      Set by workers for the command of a trial: the folder of the study and the number of the trial.

EXAMPLES
  Generate data and search the learning rate and the width of a codec:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 128 --frames 11 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o split.json
    $ ds-prep stats split.json
    $ train-stage codec --example > codec.yaml
    $ hpo new --example > study.yaml
    $ hpo new search -c study.yaml
    $ hpo worker search
    $ hpo status search
    $ hpo trials search
  Print the parameter importances and plot the trials:
    $ hpo importance search
    $ hpo plot search
    $ hpo plot search -o search.png
  Train with the best configuration:
    $ hpo best search > best.yaml
    $ train-stage codec -c codec.yaml -c best.yaml -s training.updates=80 --run best
  Start a search from the trials of another one:
    $ hpo export search --format optuna -o search.log
    $ hpo new second -c study.yaml -s seed=2
    $ hpo import second search.log
  Retrain the best configuration with two seeds and evaluate it on the test split:
    $ hpo refit search --seeds 2
  Search the parameters of another program, which reports its values with hpo tell:
    $ printf '%s\\n' 'command: [sh, evaluate.sh, \"{x}\"]' 'metric: loss' 'trials: 5' \\
    >   'space: {x: {kind: float, low: 0, high: 4}}' > other.yaml
    $ echo 'hpo tell $HPO_STUDY $HPO_TRIAL $(echo \"$1\" | tr . 0)' > evaluate.sh
    $ hpo new other -c other.yaml
    $ hpo worker other
    $ hpo export other --format csv -o other.csv
  Run a trial from the shell:
    $ hpo new mine -c other.yaml
    $ hpo ask mine --json > asked.json
    $ hpo tell mine 0 0.25 --step 1
    $ hpo tell mine 0 0.125 --final

SEE ALSO
  longhaul-study(5), train-stage(1), timekeep(1), longhaul-slurm(7), longhaul(7)
";
