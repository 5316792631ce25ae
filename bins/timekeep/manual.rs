//! The last sections of the manual page.

pub const MANUAL: &str = "\
EXIT STATUS
  timekeep run exits with the status of the command.
  128+n  The command was ended by signal n.
  254    srun could not start a step; timekeep sets SLURM_EXIT_ERROR so that srun reports this.
  127    The command was not found.
  126    The command cannot be executed.
  2      The command line is wrong.
  65     A stamp, a result of a step or another record is damaged.
  66     A run directory, a pipeline or a file that a step names is missing.
  75     SLURM does not answer: submit and cron submitted nothing, and left does not know the end of the job.
  78     A pipeline or a site file is wrong, or --step is given the command of another step.
  1      For submit and cron: a submission failed.

EXAMPLES
  Show the time left:
    $ timekeep left
  Test in a script whether any time is left:
    $ test \"$(timekeep left | cut -d ' ' -f 1)\" != 0
  A limit of one day, with USR1 ten minutes before it:
    $ timekeep run --limit 24:00:00 --margin 10m -- sh -c 'echo training'
  Report how a command ended, as JSON:
    $ timekeep run --limit 1h --json -- true
  A checkpoint that takes 20 s, on 16 nodes that each fail once in 200 days:
    $ timekeep interval --cost 20s --mtbf 200d --nodes 16
  Submit a run (`echo 12` stands for `sbatch --parsable train.sbatch ...`), then show its state:
    $ timekeep submit runs/codec -- echo 12
    $ timekeep status runs/codec
  The same on a page, with the curves of those that have begun, in a terminal until q is pressed:
    $ timekeep watch runs/codec --once
  Submit no more jobs for it:
    $ timekeep submit --forget runs/codec
  A pipeline of two steps: run the first one, then show the state of both:
    $ printf '%s\\n' 'folder: runs/p' 'steps:' '- {name: a, run: date}' '- {name: b, run: date}' >p.yaml
    $ timekeep run --step p.yaml:a
    $ timekeep pipeline p.yaml

SEE ALSO
  longhaul-slurm(7), longhaul(7), train-stage(1), sbatch(1), scontrol(1), timeout(1)
";
