//! The sections of the manual of ds-prep beyond its options.

/// Sections after the options.
pub const MANUAL: &str = "\
EQUATIONS
  Parameter, other constants with their defaults, and cells, frames and end time when none are given:
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

  Errors, relative root mean squares, on ever finer cells (with steps in proportion), and the orders they
  tell; schemes are named in the attributes of the files:
    burgers                128 256 512 cells         7.4e-4  1.9e-4  5.0e-5   orders 1.89 1.93 1.97
    diffusion-reaction     16 48 144 cells           2.9e-3  3.1e-4  3.5e-5   orders 2.02 2.00
    diffusion-reaction-2d  9 27 cells a side         3.6e-3  4.1e-4           order  1.98
    darcy                  32 64 128 cells a side    2.7e-2  1.5e-2  5.5e-3   orders 0.88 1.42
      smooth coefficient   32 64 128 cells a side    3.9e-3  9.8e-4  2.5e-4   orders 2.01 2.00 2.00
    navier-stokes          Courant numbers 2 1 0.5   2.1e-3  1.6e-4  1.1e-5   orders 3.75 3.82
                           16 24 32 48 points        5.9e-2  1.9e-2  4.5e-3  9.6e-5
  burgers is compared with Cole and Hopf's solution (Nu = 0.05), darcy of a smooth coefficient with a
  manufactured solution, the others with themselves on cells a third as wide or on steps a tenth as long.
  The coefficient of darcy jumps (0.1 and 1, the first 4 trajectories of seed 0), and each size has the jumps at
  the sides of its own cells: the error is of order one.

AUDIT
  ds-prep audit reports pairs of trajectories in different splits that have the same origin, across all
  files and manifests given. It compares numbers alone; 0.0 and -0.0 are equal. A --json record names the kind:
    duplicate           All numbers are equal (also within one split); overlap: it is the same trajectory of
                        the same file.
    same-initial-state  The first frames, or the inputs of steady problems, are equal.
    shared-frame        Any other frame of one is a frame of the other, number for number.
    near-duplicate      The first frames, or the inputs, are closer than --near.
    symmetric           The same after a periodic shift by whole points along any axes, mirrored axes,
                        exchanged axes of equal length, or all of these.
    near-frame          One begins, within --near, with a later frame of the other: a copy that starts later,
                        with noise.
    shared-window       A frame of one and the first frame of the other agree, number for number, wherever they
                        overlap at some offset: one is a crop of the other, or both are crops of a larger
                        field. The overlap has at least 16 points along the last axis of space, most of whose
                        values differ. Of a first frame 16 such patches, spread over it, are looked up:
                        overlapping crops are found when one lies in the overlap, as a rule from a quarter of
                        the frame on.
  The distance is |a' - b'| / max(|a'|, |b'|), over all points and channels, where a' is a without the mean of
  each channel: a pressure of 101325 does not outweigh a velocity of 1, and a copy with a constant added to a
  channel is a copy. A channel whose variation is below 1e-6 of its norm counts as constant. The distance is
  computed at full resolution, and reported from one bit in one number on (3e-8 for noise in the last bits of
  f32). Candidates are selected by signatures that are never farther apart than the
  fields; for each frame the 32 nearest candidates of each split are compared, and a note says when there
  were more. Fields of a single wave (99.9 % of the energy) are shifts of each other by nature: for them
  symmetric and near-frame mean a distance below 1e-5.
  For each trajectory audit reports at most one equal trajectory, first frame or frame in another split, and
  at most one of the leaks below shared-frame in the table. Remove what it reports, then audit again.
  Not found are: copies on another grid, multiplied by a factor, with the sign of a vector turned along with
  its axis, or of fractional shifts; crops with noise or an offset; a symmetric copy that starts later; frames
  that are constant in all channels or not finite; anything within one split but duplicates.
  Memory is about 1 KiB for each trajectory and 30 bytes for each frame of validation and test.

FILES
  A file holds trajectories [frames, grid, channels]. Read are HDF5 in PDEBench's layouts:
    tensor          tensor [n,t,x..] or [n,t,x..,c], x-coordinate, .., t-coordinate
    groups          0000/data [t,x..,c], 0000/grid/x, .., 0000/grid/t, for each trajectory
    variables       density, pressure, Vx, .. [n,t,x..]
    steady          nu [n,x,y], an input, and tensor [n,1,x,y], the solution
    incompressible  velocity, particles [n,t,x,y,c], an input force [n,x,y,2], t [n,t]
  and the same arrays in .npz, .safetensors and Zarr version 2 (.zarr), one array in .npy, and tables:
  .csv with columns n, t, x, .. and one for each channel. Channels come last, inputs before states.
  Tables, which are read into memory as a whole, and Zarr are for import: split and training refuse them.
  Parameters (nu, beta, m, re, eta, zeta, rho, du, dv, k, d, dk; case is ignored) are attributes of the root or of a
  group, lines of the attribute config, a dataset such as nu [n], or parts of the file name, such as Nu0.01 (k and
  d are too short for that). In a file name digits after a leading 0 are decimals: KH_M01_dk1_Re1e3.hdf5 is
  m=0.1,re=1000,dk=1 and Turb_M1.hdf5 is m=1. An attribute with several values is refused.
  All trajectories of a file, and all files of a manifest, share their points and times. Groups (0000/grid) and
  rows of t are compared with the first; differences up to 4.8e-7 of the largest magnitude along the axis, a
  few roundings of f32, are ignored, larger ones are refused.

  What lies in one piece, as f32 in this order, is read where it is, at the speed of memory. `ds-prep ls`
  says of other files how they are reached and what a byte costs, and `ds-prep import` brings them into one
  piece: HDF5, or safetensors, which training maps into memory: in shards of 1 GiB unless asked for others,
  with FOLDER/index.json, of each shard counts, shape, BLAKE3 and statistics. ls, show, plot, check and
  split take the index in the place of its shards; show --sample and plot count trajectories through the shards
  in their order. A file for each regime is made where trajectories have parameters
  of their own (groups, or a list nu [n]). --parameter adds parameters of any name, which the attribute
  longhaul_parameters of the new file lists in lower case; a value that contradicts the file is an error unless
  --override is given. Attributes of the source's root and dataset are kept, those of its groups in
  trajectory_attributes, a JSON list, or in groups again with --to-layout groups; safetensors keeps them as
  metadata. The attribute import is JSON: what was asked for and, under previous, how the source was
  imported. An import goes on where it was stopped or killed: until a file is
  whole, its numbers lie in .NAME.partial beside it, and what is durable in .NAME.partial.jsonl.
  gen writes layout tensor; steady for darcy; groups, in .h5 files, for diffusion-reaction-2d and
  navier-stokes. PDEBench's classes FNODatasetSingle and FNODatasetMult open them as they are (from .h5 the
  first requires a group 0023, that is, 24 trajectories). Constants, seed, scheme, initial states and periodic
  axes are attributes.

  split.json holds the files by path (relative to it) and BLAKE3, the numbers of the trajectories in each split,
  and a seal: a BLAKE3 of its own text. A manifest that was edited is refused; run split again with other
  options instead. Every parameter value is divided in the same proportion. Trajectories with the same initial state,
  or the same coefficient of a steady problem, share a split, whatever their parameters. A first frame that
  is constant or has no finite numbers identifies nothing: then only identical trajectories share a split.
  A share that is not 0 gets at least one group of trajectories, even if the group is larger than the share;
  split fails if there are too few groups. With --group-by content only identical trajectories
  share a split: use it where a data set has one initial state and differs in its parameters or forcing.
  check reports every contradiction of a manifest: with itself (sizes, names and number of channels and inputs,
  numbers of files and trajectories, trajectories listed twice, splits that are empty though their share is
  not 0 or differ from a share given as a count) and with its files (content, counts, grid, channels, inputs, parameters, points and times). Programs
  that open a manifest refuse the same contradictions.
  stats.json holds count, mean, standard deviation, range and root mean square of the training split.

LIMITS
  Nothing in a file is trusted. Lengths that a file declares are compared with its size, with the memory
  that is available (four frames must fit) and with these limits before memory is allocated:
    trajectories of a file            16,777,216
    numbers of a coordinate           16,777,216, also values of a coordinate's column in a table
    chunk of HDF5 or Zarr             256 MiB; Zarr's are also refused when larger than their shape allows
    row of a table                    1 MiB
    manifest                          64 MiB; it names at most all trajectories of a file in each split
    --threads                         1024
  Only regular files are opened. HDF5 files are read in a process of their own, which the program starts and
  which ends with it: when the HDF5 library crashes on a damaged file, or takes more than 20 seconds of CPU
  time for one question (and one more for each MiB of numbers) or 2 GiB of memory, that is an error about the
  file. External links, external storage and virtual datasets of HDF5 are not followed; copy their data into
  the file, for example with `h5copy -f ext`.

EXIT STATUS
  0   The work is done; check and audit found no fault.
  2   The command line is wrong.
  65  The data is bad, or check or audit found faults.
  66  A file is missing.
  73  A file cannot be created, or is there already.
  74  Reading or writing failed midway.
  75  gen or import was told to stop, and the files named on stdout are whole; or another import is making
      the same file.

EXAMPLES
  Burgers at three viscosities, divided, measured and checked:
    $ ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 10 --grid 128 --frames 21 -o raw
    $ ds-prep split raw/*.hdf5 --train 80% --validation 10% --test 10% -o split.json
    $ ds-prep stats split.json
    $ ds-prep check split.json
    $ ds-prep audit split.json
  Half the points, every second frame, in safetensors files of at most 4 trajectories:
    $ ds-prep import raw/*.hdf5 --grid 64 --stride 2 --format safetensors --shard 4 -o small
  A test of extrapolation: the largest viscosity is for the test alone:
    $ ds-prep split raw/*.hdf5 --by parameter --train 1 --validation 1 --test 1 -o far.json
  Files whose names another program finds:
    $ find raw -name '*.hdf5' | ds-prep ls -
  One trajectory, frame by frame:
    $ ds-prep show raw/1D_Burgers_Sols_Nu0.1.hdf5 --sample 3
    $ ds-prep plot raw/1D_Burgers_Sols_Nu0.1.hdf5 --sample 3 -o trajectory.png

SEE ALSO
  longhaul(7), latent-cache(1), train-stage(1)
";
