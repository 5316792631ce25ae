//! Parameters that are constants in a forward run, such as frozen ones: one that is stored in another form than the compute
//! dtype is brought into it where it is used.

use crate::params::Params;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tensor::nf4::Nf4;
use tensor::ops::cast::Cast;
use tensor::ops::frozen_linear::Storage;
use tensor::{Dtype, Tape, Tensor, Var, constant};

/// The weight of a linear layer.
pub enum Weight<'a> {
    /// A matrix in the compute dtype.
    Dense(&'a Var),
    /// A constant matrix in another form: its tensors.
    Stored(Storage, &'a [Var]),
}

/// Constant parameters, in their stored form and, where one was used in the compute dtype, in that.
#[derive(Clone)]
pub(super) struct Frozen {
    stored: Rc<Vec<Var>>,
    /// Layouts and tensors of quantised weights.
    quantised: Rc<BTreeMap<usize, (Nf4, Vec<Var>)>>,
    /// Copies that were made before.
    prepared: Rc<BTreeMap<usize, Tensor>>,
    compute: Rc<Vec<OnceCell<Var>>>,
}

impl Frozen {
    pub(super) fn of(params: &Params) -> Self {
        let stored: Vec<Var> = params.tensors().cloned().map(constant).collect();
        let quantised = (0..stored.len()).filter_map(|i| {
            let (layout, pieces) = params.quantised(i)?;
            Some((i, (layout, pieces.into_iter().cloned().map(constant).collect())))
        });
        Self {
            quantised: Rc::new(quantised.collect()),
            prepared: Rc::new(params.prepared().clone()),
            compute: Rc::new(vec![OnceCell::new(); stored.len()]),
            stored: Rc::new(stored),
        }
    }

    /// The copy of a parameter in this dtype, if there is one.
    fn copy(&self, i: usize, dtype: Dtype) -> Option<&Tensor> {
        self.prepared.get(&i).filter(|copy| copy.dtype() == dtype)
    }

    /// The same parameters, none of which has been used in the compute dtype.
    pub(super) fn unused(&self) -> Self {
        Self { compute: Rc::new(vec![OnceCell::new(); self.stored.len()]), ..self.clone() }
    }

    /// Returns what is stored of a parameter.
    pub(super) fn stored(&self, i: usize) -> &Var {
        &self.stored[i]
    }

    /// Returns a dense parameter in `dtype`.
    pub(super) fn computing(&self, i: usize, dtype: Dtype) -> &Var {
        let stored = &self.stored[i];
        let own = stored.value().dtype();
        if own == dtype || !own.is_float() {
            return stored;
        }
        self.compute[i].get_or_init(|| match self.copy(i, dtype) {
            Some(copy) => constant(copy.clone()),
            // Without a cast, the op that uses the parameter reports its dtype.
            None => Tape::without_gradients()
                .apply(Cast(dtype), &[stored])
                .map_or(stored.clone(), |cast| cast.detached()),
        })
    }

    /// Returns what is stored of a parameter that has another form than `dtype` and no copy in it.
    pub(super) fn apart(&self, i: usize, dtype: Dtype) -> Option<(Storage, &[Var])> {
        if let Some((layout, pieces)) = self.quantised.get(&i) {
            return Some((Storage::Nf4(*layout), pieces));
        }
        let stored = &self.stored[i];
        let own = stored.value().dtype();
        let is_apart = own != dtype && own.is_float() && self.copy(i, dtype).is_none();
        is_apart.then(|| (Storage::Dense(own), std::slice::from_ref(stored)))
    }

    /// All variables, in every form.
    pub(super) fn variables(&self) -> impl Iterator<Item = &Var> {
        self.stored.iter().chain(self.compute.iter().filter_map(OnceCell::get))
    }
}
