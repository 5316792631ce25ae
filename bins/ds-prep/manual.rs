//! The sections of the ds-prep manual that follow the options.

/// Sections after the options.
pub const MANUAL: &str = "\
EXIT STATUS
  0   Done; check and audit found no problem.
  1   audit found what splits share: leaks, copies or near-duplicates.
  2   The command line is wrong.
  65  The data is bad, or check found problems.
  66  A file is missing.
  73  A file cannot be created, or already exists.
  74  Reading or writing failed midway.
  75  gen or import was stopped; the files named on stdout are complete. Or another import is writing the same
      file.

EXAMPLES
  Burgers' equation at three viscosities, with split, statistics and checks:
    $ ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 10 --grid 128 --frames 21 -o raw
    $ ds-prep split raw/*.hdf5 --train 80% --validation 10% --test 10% -o split.json
    $ ds-prep stats split.json
    $ ds-prep check split.json
    $ ds-prep audit split.json
  Half the points, every second frame, in safetensors files of at most 4 trajectories:
    $ ds-prep import raw/*.hdf5 --grid 64 --stride 2 --format safetensors --shard 4 -o small
  A test of extrapolation, with the largest viscosity in the test split only:
    $ ds-prep split raw/*.hdf5 --by parameter --train 1 --validation 1 --test 1 -o far.json
  Records for regression: from two consecutive frames, the third one after them:
    $ ds-prep import raw/*.hdf5 --history 2 --shift 3 -o pairs
    $ ds-prep split pairs -o pairs.json
    $ ds-prep stats pairs.json -o pairs-stats.json
  Texts: annotated sentences, split by post, and the tokens of a vocabulary of their training split:
    $ ds-prep gen criteria --samples 300 --seed 1 -o texts
    $ ds-prep import texts/annotations.csv --columns texts/columns.yaml -o sentences
    $ ds-prep split sentences --seed 1 -o sentences.json
    $ ds-prep audit sentences.json || test $? = 1
    $ ds-prep vocabulary sentences.json -o tokenizer
    $ ds-prep tokenize sentences.json --tokenizer tokenizer --max-length 64 -o tokens
    $ ds-prep show sentences --sample 3
  Answers: where in a post a symptom is stated, in windows of at most 96 tokens:
    $ ds-prep import texts/annotations.csv --columns texts/spans.yaml -o posts
    $ ds-prep split posts --seed 1 -o posts.json
    $ ds-prep vocabulary posts.json -o words
    $ ds-prep tokenize posts.json --tokenizer words --max-length 96 -o windows
  Vectors: sentences of a synthetic language, and vectors of their meaning:
    $ ds-prep gen sentences --samples 500 --test 50 -o said
    $ ds-prep import said/pairs.jsonl --columns said/columns.yaml --vectors said/pairs.npy -o heard
    $ ds-prep split heard -o heard.json
    $ ds-prep stats heard.json -o heard-stats.json
  Dialogues: questions and answers, for the fine-tuning of a decoder, and a byte-level vocabulary with a chat template for
  one that is trained from random weights; a pretrained one has its own:
    $ ds-prep gen dialogues --samples 200 -o asked
    $ ds-prep import asked/dialogues.jsonl --columns asked/columns.yaml -o dialogues
    $ ds-prep split dialogues -o dialogues.json
    $ ds-prep vocabulary dialogues.json --size 400 -o bytes
    $ ds-prep tokenize dialogues.json --tokenizer bytes --max-length 128 -o chat-tokens
  Pages: synthetic headers of well logs, as images with their text:
    $ ds-prep gen headers --preset shifted --samples 100 --rows 2..4 --seed 1 -o pages
  File names from another program:
    $ find raw -name '*.hdf5' | ds-prep ls -
  One trajectory, frame by frame and as a picture:
    $ ds-prep show raw/1D_Burgers_Sols_Nu0.1.hdf5 --sample 3
    $ ds-prep plot raw/1D_Burgers_Sols_Nu0.1.hdf5 --sample 3 -o trajectory.png

SEE ALSO
  longhaul-files(5), latent-cache(1), train-stage(1), longhaul(7), longhaul-recovery(7)
";
