//! Tensors that are added to a model's own in a pass, or take their place: adapters, and weights that are trained.
//!
//! A [`Tuning`] names its tensors as the model's files do (`model.layers.0.self_attn.q_proj.weight`). Its tensors may
//! carry autodiff; the model's own never do. A low-rank pair is computed as `scale · B · (A · x)`: the
//! product `B · A`, which is as large as the weight, is never made.
//!
//! Rows of one pass may run with different adapters (`Tuning::by_rows`): the model's own product is computed once for
//! all of them, and each adapter adds its part to the columns of its rows.

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData};
use surefoot_ops::product;

use super::dropout::Dropout;
use crate::arch::blueprint::Layout;

/// A low-rank addition to a projection.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// `[rank, inputs]`.
    pub a: Tensor<2>,
    /// `[outputs, rank]`.
    pub b: Tensor<2>,
    /// Applied to the product.
    pub scale: f64,
    /// What is dropped of its inputs while it is trained.
    pub dropout: Option<Dropout>,
}

impl LowRank {
    /// What is added to the projection of `x`, `[inputs, columns]`.
    fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        let device = x.device().without_autodiff();
        let on = |tensor: &Tensor<2>| match tensor.device().without_autodiff() == device {
            true => tensor.clone(),
            // A block that runs elsewhere takes its adapter along.
            false => tensor.clone().to_device(&device),
        };
        let x = match &self.dropout {
            Some(dropout) => dropout.apply(x),
            None => x,
        };
        product(on(&self.b), false, product(on(&self.a), false, x) * self.scale)
    }
}

/// What is added to or put in place of a model's tensors, by the names of these.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    low_rank: HashMap<String, LowRank>,
    matrices: HashMap<String, Tensor<2>>,
    vectors: HashMap<String, Tensor<1>>,
    groups: Vec<ColumnGroup>,
}

/// The columns of a pass that run with one adapter.
#[derive(Clone, Debug)]
struct ColumnGroup {
    tuning: Arc<Tuning>,
    columns: Tensor<1, Int>,
}

impl Tuning {
    /// Adds a low-rank pair to the projection with the weight `name`.
    pub fn add(&mut self, name: impl Into<String>, pair: LowRank) {
        self.low_rank.insert(name.into(), pair);
    }

    /// Puts a matrix or table in place of the model's own, in the layout of the file.
    pub fn replace_matrix(&mut self, name: impl Into<String>, matrix: Tensor<2>) {
        self.matrices.insert(name.into(), matrix);
    }

    /// Puts a vector in place of the model's own: a bias, or a norm's scale or shift.
    pub fn replace_vector(&mut self, name: impl Into<String>, vector: Tensor<1>) {
        self.vectors.insert(name.into(), vector);
    }

    /// The tuning of a pass whose rows, of `width` columns each, run with different adapters: a row's adapter is given by
    /// its number in `adapters`, which have low-rank pairs only. Rows that are not given run without one.
    pub(crate) fn by_rows(
        adapters: &[Arc<Self>],
        rows: &[Option<usize>],
        width: usize,
        device: &Device,
    ) -> Self {
        let group = |(number, tuning): (usize, &Arc<Self>)| {
            let of_adapter = (0..rows.len()).filter(|row| rows[*row] == Some(number));
            let columns: Vec<i64> = of_adapter
                .flat_map(|row| row * width..(row + 1) * width)
                .map(|column| column as i64)
                .collect();
            let count = columns.len();
            (count > 0).then(|| ColumnGroup {
                tuning: Arc::clone(tuning),
                columns: Tensor::from_data(TensorData::new(columns, [count]), device),
            })
        };
        let groups = adapters.iter().enumerate().filter_map(group).collect();
        Self { groups, ..Self::default() }
    }

    /// Whether anything is changed by it.
    pub fn is_empty(&self) -> bool {
        self.low_rank.is_empty()
            && self.matrices.is_empty()
            && self.vectors.is_empty()
            && self.groups.is_empty()
    }

    pub(crate) fn matrix(&self, name: &str) -> Option<&Tensor<2>> {
        self.matrices.get(name)
    }

    pub(crate) fn vector(&self, name: &str) -> Option<&Tensor<1>> {
        self.vectors.get(name)
    }

    /// What is added to the projection with the weight `name` of `x`, `[inputs, columns]`.
    pub(crate) fn addition(&self, name: &str, x: &Tensor<2>) -> Option<Tensor<2>> {
        if self.groups.is_empty() {
            return self.low_rank.get(name).map(|pair| pair.apply(x.clone()));
        }
        let mut sum: Option<Tensor<2>> = None;
        for group in &self.groups {
            let columns = group.columns.clone().to_device(&x.device());
            let of_group = x.clone().select(1, columns.clone());
            let Some(part) = group.tuning.addition(name, &of_group) else { continue };
            let whole = sum.unwrap_or_else(|| {
                Tensor::zeros([part.dims()[0], x.dims()[1]], (&x.device(), part.dtype()))
            });
            sum = Some(whole.select_assign(1, columns, part, IndexingUpdateOp::Add));
        }
        sum
    }

    /// The projection of `x` by the matrix that takes the place of `name`.
    pub(crate) fn projection(
        &self,
        name: &str,
        layout: Layout,
        x: &Tensor<2>,
    ) -> Option<Tensor<2>> {
        let matrix = self.matrices.get(name)?;
        Some(product(matrix.clone(), layout == Layout::InOut, x.clone()))
    }

    /// The same without autodiff, on `device`.
    #[must_use]
    pub fn on(&self, device: &Device) -> Self {
        let two = |tensor: &Tensor<2>| tensor.clone().inner().to_device(device);
        let one = |tensor: &Tensor<1>| tensor.clone().inner().to_device(device);
        let pair = |pair: &LowRank| LowRank { a: two(&pair.a), b: two(&pair.b), ..pair.clone() };
        let low_rank = self.low_rank.iter().map(|(name, low)| (name.clone(), pair(low)));
        let matrices = self.matrices.iter().map(|(name, matrix)| (name.clone(), two(matrix)));
        let vectors = self.vectors.iter().map(|(name, vector)| (name.clone(), one(vector)));
        Self {
            low_rank: low_rank.collect(),
            matrices: matrices.collect(),
            vectors: vectors.collect(),
            groups: Vec::new(),
        }
    }
}
