//! The sections of the evaluate manual that follow the options.

/// Sections after the options.
pub const MANUAL: &str = "\
EXIT STATUS
  0   Complete.
  1   For gate: the evaluation does not pass. For score and predict: a weight or a prediction of the model is not
      finite; score of fields and records has written its result nevertheless. Also for score: three consecutive
      attempts were stopped or killed before they stored anything: the job needs a longer time limit. The next
      attempt counts from 0 again.
  2   The command line is wrong, or no rollout fits into the trajectories.
  65  A checkpoint is damaged, a data file is not what the split manifest recorded, or the codec is not the one
      that the operator was trained with. Data files are hashed concurrently with the evaluation and compared before
      any result is written. For predict of prompts: some cannot be read, such as damaged images; the output has
      an error for each of them, and the answers to all others. For compare: the protocols, tasks or data differ,
      or a result is of an earlier version.
  66  A checkpoint, the data or an evaluation is missing. For gate: the leaderboard has no baseline. For plot:
      no run has logged anything to draw.
  73  The result cannot be written, or already exists.
  74  For export: the server cannot be reached.
  75  Stopped by TERM, INT, HUP or USR1; the same command resumes after the last stored samples,
      and export --follow where it was.

ENVIRONMENT
  MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD
      For export: access to the MLflow server.
  MLFLOW_TRACKING_SERVER_CERT_PATH
      For export: file with the certificate of an https server, or of its authority, if that is not a public one.
  HTTPS_PROXY, HTTP_PROXY, NO_PROXY
      For export: the proxy to reach it.

EXAMPLES
  A data set, a codec and an operator on its latents:
    $ ds-prep gen burgers --parameter 0.01 --samples 10 --grid 128 --frames 41 --seed 1 -o data
    $ ds-prep split data/*.hdf5 --seed 1 -o split.json
    $ ds-prep stats split.json
    $ train-stage codec --example > codec.yaml
    $ train-stage codec -c codec.yaml -s training.updates=100 --run codec
    $ latent-cache make codec --data split.json -o latents
    $ train-stage operator --example > operator.yaml
    $ train-stage operator -c operator.yaml -s training.updates=100 --run operator
  Their errors on the test split:
    $ evaluate score operator --data split.json --steps 8 -o result
  The same with a codec that was moved:
    $ cp -r codec moved
    $ evaluate score operator --with codec=moved --data split.json --steps 8 -o moved-result
  The mean of 8 rollouts from copies transformed by symmetries of the equation, and its error bars:
    $ evaluate score operator --data split.json --steps 8 --views 8 -o views-result
  Check that 8 steps fit before training anything:
    $ evaluate check -c operator.yaml --data split.json --steps 8
  The errors of the codec alone:
    $ evaluate score codec --data split.json --steps 8 -o codec-result --json
  Rollouts of 20 steps from the first frames of a file:
    $ ds-prep gen burgers --parameter 0.01 --samples 3 --grid 128 --frames 2 --seed 9 -o new
    $ evaluate predict operator --inputs new/*.hdf5 --steps 20 -o predicted.hdf5
    $ ds-prep show predicted.hdf5
  Two evaluations in one HTML file with all pictures:
    $ evaluate compare result moved-result --html comparison.html
  What the log of a run suggests:
    $ evaluate analyze operator
  The curves of two runs, on the terminal and as a picture:
    $ evaluate plot codec operator
    $ evaluate plot codec operator --metric loss --metric nrmse -o curves.svg
  The run for TensorBoard, with the evaluation, and for W&B:
    $ evaluate export --format tensorboard -o tensorboard operator --evaluation result
    $ evaluate export --format wandb -o . --project burgers --tags baseline codec operator
  The same on an MLflow server, while the run goes on:
    $ evaluate export --format mlflow --url http://localhost:5000 --follow operator || test $? = 74
  A leaderboard, and a model that must be better than the best row labelled baseline:
    $ evaluate leaderboard add result --board leaderboard.jsonl --label baseline
    $ train-stage operator -c operator.yaml -s training.updates=200 --run longer
    $ evaluate score longer --data split.json --steps 8 -o longer-result
    $ evaluate gate longer-result --board leaderboard.jsonl --baseline baseline --max-ratio max_error=1.1 ||
    >   test $? = 1
    $ evaluate leaderboard add longer-result --board leaderboard.jsonl --label candidate
    $ evaluate leaderboard show --board leaderboard.jsonl --html leaderboard.html
  A steady problem, from permeability to pressure:
    $ ds-prep gen darcy --parameter 1 --samples 20 --grid 32 --seed 1 -o rock
    $ ds-prep split rock/*.hdf5 --seed 1 -o rock/split.json
    $ ds-prep stats rock/split.json
    $ train-stage regression --example > darcy.yaml
    $ train-stage regression -c darcy.yaml -s data.split=rock/split.json \\
    >   -s data.stats=rock/stats.json -s training.updates=100 --run darcy
    $ evaluate score darcy --data rock/split.json -o rock-result
  Conversations: a small decoder, its loss and its answers beside baselines, and answers to new prompts:
    $ ds-prep gen dialogues --samples 300 --difficulty easy -o asked
    $ ds-prep import asked/dialogues.jsonl --columns asked/columns.yaml -o dialogues
    $ ds-prep split dialogues -o dialogues.json
    $ ds-prep vocabulary dialogues.json --size 400 -o bytes
    $ ds-prep tokenize dialogues.json --tokenizer bytes --max-length 128 -o chat-tokens
    $ train-stage sft --example > sft.yaml
    $ train-stage sft -c sft.yaml -s data.tokens=chat-tokens -s training.updates=40 --run chat
    $ evaluate score chat --data chat-tokens --max-new-tokens 16 -o chat-result
    $ echo '{\"prompt\": \"What is 12 + 11?\"}' | evaluate predict chat --inputs - -o - --max-new-tokens 16
    $ evaluate predict chat --inputs asked/dialogues.jsonl --temperature 0.7 --top-p 0.8 --top-k 20 \\
    >   --max-new-tokens 8 -o answers.jsonl
  Texts: a classifier, its scores beside baselines, and the labels of new sentences:
    $ ds-prep gen criteria --samples 300 --seed 1 -o texts
    $ ds-prep import texts/annotations.csv --columns texts/columns.yaml -o sentences
    $ ds-prep split sentences --seed 1 -o sentences.json
    $ ds-prep vocabulary sentences.json -o tokenizer
    $ ds-prep tokenize sentences.json --tokenizer tokenizer --max-length 64 -o tokens
    $ train-stage classify --example > classify.yaml
    $ train-stage classify -c classify.yaml -s training.updates=70 --run classifier
    $ evaluate score classifier --data tokens -o sentence-scores
    $ echo 'I really do, on most days, skip most meals.' | evaluate predict classifier --inputs - -o -

SEE ALSO
  longhaul-files(5), train-stage(1), latent-cache(1), ds-prep(1), timekeep(1), longhaul(7)
";
