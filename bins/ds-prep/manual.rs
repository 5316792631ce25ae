//! The sections of the manual of ds-prep beyond its options.

/// Sections after the options.
pub const MANUAL: &str = "\
EQUATIONS
  Parameter, other constants with their defaults, and default cells, frames and end time:
  burgers                u_t + uu_x = (Nu/pi) u_xx, periodic. Nu; 1024 cells, 201 frames to 2.
  advection              u_t + beta u_x = 0, periodic. beta; 1024 cells, 201 frames to 2.
  diffusion-reaction     u_t = Nu u_xx + Rho u(1 - u), periodic. Nu, Rho=1; 1024 cells, 101 frames to 1.
  diffusion-reaction-2d  u_t = Du lap u + u - u^3 - k - v, v_t = Dv lap v + u - v, closed borders.
                         Du, Dv=0.005, k=0.005; 128 x 128 cells, 101 frames to 5.
  darcy                  -div(a grad u) = beta, u = 0 at the border. beta; a is low=0.1 or high=1, the
                         same for every beta; 128 x 128 cells, steady.
  navier-stokes          w_t + u.grad w = Nu lap w + forcing (sin 2pi(x+y) + cos 2pi(x+y)), periodic; the
                         vorticity w of an incompressible flow. Nu, forcing=0.1, scale=1 (of the initial
                         state); 64 x 64 points, 51 frames to 50.

  Relative root mean square errors under refinement (time steps in proportion to cells), and the observed
  orders of convergence; the attributes of the files name the schemes:
    burgers                128 256 512 cells         7.4e-4  1.9e-4  5.0e-5   orders 1.89 1.93 1.97
    diffusion-reaction     16 48 144 cells           2.9e-3  3.1e-4  3.5e-5   orders 2.02 2.00
    diffusion-reaction-2d  9 27 cells a side         3.6e-3  4.1e-4           order  1.98
    darcy                  32 64 128 cells a side    2.7e-2  1.5e-2  5.5e-3   orders 0.88 1.42
      smooth coefficient   32 64 128 cells a side    3.9e-3  9.8e-4  2.5e-4   orders 2.01 2.00 2.00
    navier-stokes          Courant numbers 2 1 0.5   2.1e-3  1.6e-4  1.1e-5   orders 3.75 3.82
                           16 24 32 48 points        5.9e-2  1.9e-2  4.5e-3  9.6e-5
  Reference solutions: for burgers that of Cole and Hopf (Nu = 0.05), for darcy with a smooth coefficient a
  manufactured solution, for the others the same solver with cells a third as wide or steps a tenth as long.
  The coefficient of darcy is discontinuous (0.1 and 1; the first 4 trajectories of seed 0), and each grid has the
  jumps at the edges of its own cells, so the error is of order one.

AUDIT
  ds-prep audit reports pairs of trajectories in different splits that have the same origin, across all
  files and manifests given. It compares values only; 0.0 and -0.0 are equal. A --json record names the kind:
    duplicate           All values are equal (also within one split); overlap: it is the same trajectory of
                        the same file.
    same-initial-state  The first frames, or the inputs of steady problems, are equal.
    shared-frame        Another frame of one is equal to a frame of the other.
    near-duplicate      The first frames, or the inputs, are closer than --near.
  The distance is |a' - b'| / max(|a'|, |b'|), over all points and channels, where a' is a without the mean of
  each channel, so that a pressure of 101325 does not outweigh a velocity of 1, and a copy with a constant added to
  a channel is found. A channel whose variation is below 1e-6 of its norm counts as constant. The distance is
  computed at full resolution and resolves a difference of one bit in one value (3e-8 for noise in the last bits
  of f32). Candidates are selected by signatures, whose distance never exceeds that of the fields; for each frame
  the 32 nearest candidates of each split are compared, and a note says if there were more.
  For each trajectory, audit reports at most one equal trajectory, first frame or frame in another split, and
  at most one near-duplicate. Remove what it reports, then audit again.
  Not found are: copies that were shifted, mirrored, cropped, scaled or interpolated; noisy copies that start
  later; frames that are constant in all channels or not finite; anything but duplicates within one split.

FILES
  A file contains trajectories [frames, grid, channels]. Supported are HDF5 files in PDEBench's layouts:
    tensor          tensor [n,t,x..] or [n,t,x..,c], x-coordinate, .., t-coordinate
    groups          0000/data [t,x..,c], 0000/grid/x, .., 0000/grid/t, for each trajectory
    variables       density, pressure, Vx, .. [n,t,x..]
    steady          nu [n,x,y], an input, and tensor [n,1,x,y], the solution
    incompressible  velocity, particles [n,t,x,y,c], an input force [n,x,y,2], t [n,t]
  and the same arrays in .npz, .safetensors and Zarr version 2 (.zarr), one array in .npy, and tables:
  .csv with columns n, t, x, .. and one for each channel. Channels come last, inputs before states.
  Tables, which are read into memory completely, and Zarr are for import only: split and training refuse them.
  Parameters (nu, beta, m, re, eta, zeta, rho, du, dv, k, d, dk; case is ignored) are attributes of the root or of a
  group, lines of the attribute config, a dataset such as nu [n], or parts of the file name, such as Nu0.01 (except k
  and d). In a file name, digits after a leading 0 are decimals: KH_M01_dk1_Re1e3.hdf5 is m=0.1,re=1000,dk=1 and
  Turb_M1.hdf5 is m=1. An attribute with several values is refused.
  All trajectories of a file, and all files of a manifest, must have the same points and times. Groups (0000/grid)
  and rows of t are compared with the first; differences up to 4.8e-7 of the largest magnitude along the axis, a
  few roundings of f32, are ignored, larger ones are refused.

  Contiguous f32 data in this order are mapped into memory and read at its speed. For other files, `ds-prep ls`
  shows how they are stored and the cost of reading them, and `ds-prep import` converts them to contiguous files:
  HDF5, or safetensors in shards of 1 GiB (--shard). Files whose trajectories have different
  parameters (groups, or a list nu [n]) become one file per parameter value. --parameter adds parameters of any
  name, which the attribute longhaul_parameters of the new file lists in lower case; a value that contradicts the
  file is an error unless --override is given. Attributes of the root and the dataset of the source are kept, those
  of its groups in trajectory_attributes, a JSON list; in safetensors they are metadata. The attribute import is JSON: the options and, under previous, those of earlier imports of the
  source. An import that was stopped or killed resumes: until a file is complete, its values are in .NAME.partial
  in the same folder, and a record of those that are durable in .NAME.partial.jsonl.
  gen writes layout tensor; steady for darcy; groups, in .h5 files, for diffusion-reaction-2d and
  navier-stokes. PDEBench's classes FNODatasetSingle and FNODatasetMult open these files directly (for .h5 files,
  the first requires a group 0023, that is, 24 trajectories). Constants, seed, scheme, initial states and periodic
  axes are attributes.

  split.json contains the files by relative path and BLAKE3, the indices of the trajectories in each split, and a
  seal: a BLAKE3 of its own text. A manifest that was edited is refused; run split again with other options
  instead. Every parameter value is divided in the same proportions. Trajectories with the same initial state,
  or the same coefficient of a steady problem, share a split, whatever their parameters. If the first frame is
  constant or has no finite values, only identical trajectories share a split.
  A share that is not 0 gets at least one group of trajectories, even if the group is larger than the share;
  split fails if there are too few groups. With --group-by content only identical trajectories share a split: use
  it for a data set with a single initial state and different parameters or forcing.
  check reports every inconsistency of a manifest: with itself (sizes, names and number of channels and inputs,
  indices of files and trajectories, trajectories listed twice, splits that are empty although their share is
  not 0 or that differ from a share given as a count) and with its files (content, counts, grid, channels, inputs,
  parameters, points and times). Programs that open a manifest refuse the same inconsistencies.
  stats.json contains count, mean, standard deviation, range and root mean square of the training split.

LIMITS
  Lengths that a file declares are compared with its size, with the available memory (four frames must fit) and
  with these limits before memory is allocated:
    trajectories of a file            16,777,216
    values of a coordinate            16,777,216, also in a coordinate column of a table
    chunk of HDF5 or Zarr             256 MiB; in Zarr, also at most what its shape allows
    row of a table                    1 MiB
    manifest                          64 MiB; at most all trajectories of a file in each split
    --threads                         1024
  Only regular files are opened. HDF5 files are read in a helper process, which ends with the program. If the HDF5
  library crashes on a damaged file, or takes more than 20 seconds of CPU time for one request (plus one second for
  each MiB of values) or 2 GiB of memory, that is an error that names the file. External links, external storage
  and virtual datasets of HDF5 are not followed; copy their data into the file, for example with `h5copy -f ext`.

EXIT STATUS
  0   Done; check and audit found no problem.
  2   The command line is wrong.
  65  The data is bad, or check or audit found problems.
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
  File names from another program:
    $ find raw -name '*.hdf5' | ds-prep ls -
  One trajectory, frame by frame and as a picture:
    $ ds-prep show raw/1D_Burgers_Sols_Nu0.1.hdf5 --sample 3
    $ ds-prep plot raw/1D_Burgers_Sols_Nu0.1.hdf5 --sample 3 -o trajectory.png

SEE ALSO
  longhaul(7), latent-cache(1), train-stage(1)
";
