//! The controller is down for longer than a job has time left, and comes back.

use std::path::Path;
use std::time::{Duration, Instant};

use super::cluster::{Cluster, output};
use super::common::run::wait_until;

/// One job exits with 75 while the controller is down, and its time limit passes; the srun of another cannot start a
/// step. Both are requeued, and the dependent of the first starts when it is complete. Uses its own cluster, because
/// the other scenarios need their controller.
pub fn controller_outage(_: &Cluster, folder: &Path) {
    let cluster = Cluster::start().unwrap();
    let stops = "echo start >> starts; test $(wc -l < starts) -lt 2 || exit 0
                 while [ ! -e away ]; do sleep 0.1; done; exit 75";
    std::fs::write(folder.join("stops.sh"), stops).unwrap();
    let setup = "echo >> setups; while [ ! -e away ]; do sleep 0.1; done";
    std::fs::write(folder.join("setup.sh"), setup).unwrap();
    let stops =
        cluster.stdout(folder, "sbatch --parsable --time=1 $SLURM/train.sbatch sh stops.sh");
    let after = cluster
        .stdout(folder, &format!("sbatch --parsable -d afterok:{stops} -o /dev/null --wrap true"));
    let unstarted = cluster.stdout(
        folder,
        "LONGHAUL_SETUP=$PWD/setup.sh sbatch --parsable $SLURM/train.sbatch sh -c 'echo >> ran'",
    );
    wait_until(|| ["starts", "setups"].iter().all(|file| folder.join(file).exists()));
    let began = Instant::now();
    cluster.stop_controller();
    std::fs::write(folder.join("away"), "").unwrap();
    for job in [&stops, &unstarted] {
        wait_until(|| output(folder, job).contains("asking again until SLURM answers"));
    }
    // The time limit of one minute passes.
    std::thread::sleep(Duration::from_secs(62).saturating_sub(began.elapsed()));
    cluster.start_controller();
    wait_until(|| cluster.shell(folder, "scontrol ping").status == Some(0));
    for job in [&stops, &unstarted, &after] {
        cluster.wait_for_success(job, folder);
    }
    assert_eq!([&stops, &unstarted].map(|job| cluster.field(job, "Restarts")), ["1", "1"]);
    assert_eq!(std::fs::read_to_string(folder.join("ran")).unwrap().lines().count(), 1);
    assert!(output(folder, &stops).contains("SLURM will start job"), "{}", output(folder, &stops));
}
