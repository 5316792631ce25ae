//! Fine-tuning: initial values from another run's checkpoint, frozen parameters, a learning rate that is reduced on a
//! plateau, a loss that reads the moving average, and dropout.

use super::*;
use learn::forward::Forward;
use learn::nn::Linear;
use learn::params::{Builder, Init, ParamSet};
use learn::score::Direction;
use learn::score::Scores;
use learn::task::{Batch, ConfigOf, ConfiguredTask, Define, Empty, Loss, Predictions, Spec, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Tensor;
use tensor::ops::squared_error::SquaredError;
use tensor::random::{Philox, Purpose};
use unix::{Error, Exit, Result};

const WIDTH: usize = 3;

/// A linear body and a linear head that learn the identity or, with `distill`, their own moving average.
struct Layers {
    body: Linear,
    head: Linear,
    data: Data,
    numbers: Philox,
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Data {
    /// Frozen parameters.
    freeze: Vec<String>,
    /// Whether a term of the loss reads the moving average.
    distill: bool,
    /// Whether validation never improves.
    stuck: bool,
    /// Dropout before and after the body.
    dropout: f64,
    /// Whether there is a parameter on which the loss does not depend.
    #[serde(default)]
    unused: bool,
}

impl Layers {
    fn inputs(&self, samples: &[u64]) -> Tensor {
        let mut values = vec![0.0; samples.len() * WIDTH];
        for (row, sample) in values.chunks_exact_mut(WIDTH).zip(samples) {
            self.numbers.fill_normal(*sample, row);
        }
        Tensor::from_slice(&values, &[samples.len(), WIDTH])
    }

    fn run(&self, forward: &Forward, x: &tensor::Var) -> Result<tensor::Var> {
        let x = forward.dropout(&forward.to_compute_dtype(x)?, self.data.dropout)?;
        let (body, p) = (self.body.clone(), self.data.dropout);
        let h = forward
            .block(&[&x], move |forward, x| forward.dropout(&body.forward(forward, &x[0])?, p))?;
        forward.to_param_dtype(&self.head.forward(forward, &h)?)
    }
}

impl Define for Layers {
    const SPEC: Spec = Spec::new("layers", "error", Direction::Minimize, "");
    type Data = Data;
    type Model = Empty;
    type Loss = Empty;

    fn open(config: &ConfigOf<Self>) -> Result<(Self, ParamSet)> {
        let mut b = Builder::new(config.seed);
        b.freeze(&config.data.freeze);
        let body = Linear::new(&mut b, "body", WIDTH, WIDTH);
        let head = Linear::new(&mut b, "head", WIDTH, WIDTH);
        if config.data.unused {
            b.param("unused", &[WIDTH], Init::Uniform(1.0));
        }
        let numbers = Philox::new(9, Purpose::Test);
        Ok((Self { body, head, data: config.data.clone(), numbers }, b.finish()))
    }
}

impl Task for Layers {
    fn sources(&self) -> Vec<(u64, f64)> {
        vec![(1000, 1.0)]
    }

    fn data_hash(&self) -> String {
        "layers".into()
    }

    fn batch(&self, _: u64, _: u64, samples: &[u64]) -> Result<Batch> {
        Ok(Batch::new(samples.len() as f64).with("inputs", self.inputs(samples)))
    }

    fn loss(&self, forward: &Forward, batch: &Batch) -> Result<Loss> {
        assert!(forward.is_training());
        let x = batch.input(forward, "inputs")?;
        let found = self.run(forward, &x)?;
        let target = match self.data.distill {
            true => {
                let average = forward.averaged()?;
                assert!(!average.is_training());
                self.run(&average, &x)?.detached()
            }
            false => x.clone(),
        };
        let ones = |n| forward.full(&[n], 1.0);
        let weights = [&ones(x.shape()[0])?, &ones(WIDTH)?];
        let sum = forward.apply(SquaredError, &[&found, &target, weights[0], weights[1]])?;
        let terms = vec![("distance", sum.value().clone()).into()];
        Ok(Loss { sum, terms })
    }

    fn validation_samples(&self) -> u64 {
        10
    }

    fn predict(&self, forward: &Forward, batch: &Batch) -> Result<Predictions> {
        let found = self.run(forward, &batch.input(forward, "inputs")?)?.value().to_host()?;
        Ok(Predictions::default().with("outputs", WIDTH, found.read::<f32>().to_vec()))
    }

    fn evaluate(&self, forward: &Forward, samples: &[u64], scores: &mut Scores) -> Result<()> {
        assert!(!forward.is_training());
        let x = self.inputs(samples);
        let found = self.run(forward, &forward.data(&x)?)?.value().to_host()?;
        match self.data.stuck {
            true => scores.mean("error", 1.0, 1.0),
            false => scores.nrmse("error", "all", found.read(), x.read()),
        }
        Ok(())
    }
}

/// Trains for `updates` in the run directory, with changes to the configuration.
fn train(run: &Path, updates: u64, change: impl Fn(&mut Value)) -> Result<Exit> {
    train_on(run, updates, tensor::Device::Cpu, &Solo, change)
}

/// [`train`] on a device, with other ranks.
pub fn train_on(
    run: &Path,
    updates: u64,
    device: tensor::Device,
    ranks: &dyn Collective,
    change: impl Fn(&mut Value),
) -> Result<Exit> {
    let mut config = json!({"seed": 4, "data": {"freeze": [], "distill": false, "stuck": false, "dropout": 0.0},
        "model": {}, "loss": {},
        "training": {"updates": updates, "batch_size": 8, "validate_every": 5, "log_every": 1},
        "optimizer": {"method": {"kind": "adamw"}, "learning_rate": 0.05},
        "checkpoint": {"every": 10}});
    change(&mut config);
    let config: ConfigOf<Layers> = serde_json::from_value(config).map_err(Error::bug)?;
    let task = ConfiguredTask::new::<Layers>(config)?;
    let mut job = TrainJob::new(task, run.into(), device, ranks);
    // More updates than in the previous attempt are a changed configuration.
    job.accept_changes = updates > 20;
    learn::train::train(job)
}

fn newest(run: &Path) -> checkpoint::Loaded {
    checkpoint::load_newest(&run.join("ckpt")).unwrap().unwrap()
}

fn values(run: &Path, file: &str) -> Vec<(String, Vec<f64>)> {
    let tensors = newest(run).tensors(file).unwrap_or_default();
    tensors.into_iter().map(|(name, tensor)| (name, tensor.to_f64())).collect()
}

#[test]
fn frozen_parameters_come_from_another_run_and_stay_as_they_are() {
    let temporary = tempfile::tempdir().unwrap();
    let run = |name: &str| temporary.path().join(name);
    assert_eq!(train(&run("base"), 20, |_| {}).unwrap(), Exit::Done);
    let base = values(&run("base"), "model");
    assert_eq!(base.len(), 4);
    let tuned = |config: &mut Value, frozen: bool| {
        config["seed"] = json!(5);
        config["data"]["freeze"] = json!(["body.*"]);
        config["init"] = json!({"from": run("base"), "weights": "raw"});
        config["checkpoint"]["frozen"] = json!(frozen);
        config["training"]["ema"] = json!(0.9);
    };
    for (frozen, name) in [(false, "referred"), (true, "stored")] {
        let [whole, halves] = ["whole", "halves"].map(|part| run(&format!("{name} {part}")));
        train(&whole, 40, |config| tuned(config, frozen)).unwrap();
        for updates in [20, 40] {
            train(&halves, updates, |config| tuned(config, frozen)).unwrap();
        }
        for file in ["model", "ema", "optim-0-of-1"] {
            let found = values(&whole, file);
            assert!(found.iter().all(|(name, _)| name.starts_with("head.")), "{file}: {found:?}");
            assert_eq!(found, values(&halves, file), "{name}: {file} after two attempts");
        }
        let body = values(&whole, "frozen");
        if frozen {
            assert_eq!(
                body,
                base.iter().filter(|(n, _)| n.starts_with("body.")).cloned().collect::<Vec<_>>()
            );
        } else {
            assert!(body.is_empty());
        }
        assert!(newest(&whole).manifest.dependencies.contains_key("frozen parameters"));
    }
    // The other run continues: its parameters are no longer those that the checkpoints refer to.
    train(&run("base"), 40, |_| {}).unwrap();
    let again = |name: &str, frozen| {
        let result = train(&run(name), 20, |config| {
            tuned(config, frozen);
            config["training"]["updates"] = json!(40);
            config["training"]["log_every"] = json!(2);
        });
        result.map_err(|error| (error.exit, error.to_string()))
    };
    // Finished runs are not read again.
    assert_eq!(again("stored halves", true), Ok(Exit::Done));
    let short = |budget: Value| {
        train(&run("short"), 20, |config| {
            tuned(config, false);
            config["cost"] = json!({"rate_per_hour": 1, "budget": budget, "stop_at_budget": true});
        })
    };
    assert_eq!(short(json!(1e-12)).unwrap(), Exit::Again);
    train(&run("base"), 60, |_| {}).unwrap();
    let error = short(Value::Null).unwrap_err();
    assert_eq!(error.exit, Exit::Config);
    assert!(error.to_string().contains("frozen parameters: hash was"), "{error}");
    std::fs::rename(run("base"), run("moved")).unwrap();
    let error = short(Value::Null).unwrap_err();
    assert_eq!(error.exit, Exit::NoInput, "{error}");
}

#[test]
fn weights_that_are_not_those_of_the_model_are_listed() {
    let temporary = tempfile::tempdir().unwrap();
    let run = |name: &str| temporary.path().join(name);
    train(&run("base"), 5, |_| {}).unwrap();
    let renamed = |names: Value| {
        train(&run("tuned"), 5, |config| {
            config["init"] = json!({"from": run("base"), "names": names});
        })
    };
    let error = renamed(json!({"map": ["head.*=tail.*"]})).unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    for part in ["missing: head.weight [3, 3]", "unexpected: tail.bias [3] (head.bias in the file)"]
    {
        assert!(error.to_string().contains(part), "no {part} in {error}");
    }
    let exchanged = json!({"map": ["head.*=body.*", "body.*=other.*"], "ignore": ["body.*"], "keep": ["head.*"]});
    assert_eq!(renamed(exchanged).unwrap(), Exit::Done);
}

#[test]
fn the_learning_rate_falls_on_a_plateau_whatever_interrupts_the_run() {
    let temporary = tempfile::tempdir().unwrap();
    let rates = |name: &str, attempts: &[u64]| {
        let run = temporary.path().join(name);
        for updates in attempts {
            train(&run, *updates, |config| {
                config["data"]["stuck"] = json!(true);
                config["plateau"] = json!({"factor": 0.5, "patience": 1});
            })
            .unwrap();
        }
        let records = unix::log::read(&run.join("log.jsonl")).unwrap().records;
        let rate = |record: &serde_json::Map<String, Value>| {
            (record["kind"] == "update").then(|| record["learning_rate"].as_f64().unwrap())
        };
        records.iter().filter_map(rate).collect::<Vec<f64>>()
    };
    let whole = rates("whole", &[40]);
    // The first validation, after 5 updates, is the best; the third and the fifth without improvement reduce the rate.
    let expected: Vec<f64> =
        (0..40).map(|update| 0.05 * 0.5_f64.powi(i32::max(update / 5 - 1, 0) / 2)).collect();
    assert_eq!(whole, expected);
    assert_eq!(rates("halves", &[20, 40]), whole);
}

#[test]
fn a_loss_may_read_the_moving_average() {
    let temporary = tempfile::tempdir().unwrap();
    let train = |name: &str, ema: Value| {
        train(&temporary.path().join(name), 5, |config| {
            config["data"]["distill"] = json!(true);
            config["training"]["ema"] = ema.clone();
        })
    };
    assert_eq!(train("with", json!(0.9)).unwrap(), Exit::Done);
    let error = train("without", Value::Null).unwrap_err();
    assert_eq!(error.exit, Exit::Config);
    assert!(error.to_string().contains("training.ema"), "{error}");
}

#[test]
fn masks_of_dropout_depend_neither_on_attempts_nor_on_what_is_recomputed_or_divided() {
    let temporary = tempfile::tempdir().unwrap();
    let trained = |name: &str, attempts: &[u64], keys: Value| {
        let run = temporary.path().join(name);
        for updates in attempts {
            train(&run, *updates, |config| {
                config["data"]["dropout"] = json!(if name == "none" { 0.0 } else { 0.3 });
                config["training"] = with(config["training"].clone(), keys.clone());
            })
            .unwrap();
        }
        let tensors: Vec<f64> = values(&run, "model").into_iter().flat_map(|(_, x)| x).collect();
        let error = newest(&run).manifest.metrics["error"].as_f64().unwrap();
        (tensors, error)
    };
    let whole = trained("whole", &[40], json!({}));
    assert_eq!(trained("halves", &[20, 40], json!({})), whole);
    assert_eq!(trained("recomputed", &[40], json!({"mem_budget": 0.0})), whole);
    // Slices of one sample each, summed in a tree: the same terms in another order.
    let (sliced, _) = trained("sliced", &[40], json!({"deterministic": true}));
    for (a, b) in sliced.iter().zip(&whole.0) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
    let (none, _) = trained("none", &[40], json!({}));
    let far = none.iter().zip(&whole.0).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(far > 1e-2, "dropout changes nothing: {far:e}");
}
