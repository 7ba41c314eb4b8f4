//! A module's float parameters as a list of flat tensors, in the order the module shows them.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, GradientCheckpointingStrategy, Gradients, Tensor};

/// What a parameter is called and looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its path in the module: `blocks.0.conv.weight`.
    pub name: String,
    /// Its dimensions.
    pub dims: Vec<usize>,
}

struct Walk<F> {
    path: Vec<String>,
    visit: F,
}

/// Takes a parameter's gradient out of all.
type TakeGradient<'a> = Box<dyn Fn(&mut Gradients) -> Option<Tensor<1>> + 'a>;

/// A parameter that is being visited, flattened when it is asked for.
pub(crate) struct Seen<'a> {
    pub(crate) path: &'a [String],
    pub(crate) dims: Vec<usize>,
    pub(crate) value: Box<dyn Fn() -> Tensor<1> + 'a>,
    pub(crate) gradient: TakeGradient<'a>,
}

impl<F: FnMut(Seen<'_>)> ModuleVisitor for Walk<F> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let dims = param.lazy_shape().to_vec();
        let size = dims.iter().product::<usize>();
        (self.visit)(Seen {
            path: &self.path,
            dims,
            value: Box::new(move || param.val().inner().reshape([size])),
            gradient: Box::new(move |gradients| {
                let value = param.val();
                if !value.is_require_grad() {
                    return None;
                }
                value.grad_remove(gradients).map(|gradient| gradient.inner().reshape([size]))
            }),
        });
    }
}

fn walk<M: Module>(module: &M, visit: impl FnMut(Seen<'_>)) {
    module.visit(&mut Walk { path: Vec::new(), visit });
}

/// The names and dimensions of all parameters.
pub fn shapes<M: Module>(module: &M) -> Vec<Shape> {
    let mut shapes = Vec::new();
    walk(module, |seen| shapes.push(Shape { name: seen.path.join("."), dims: seen.dims }));
    shapes
}

/// The values, without autodiff.
pub fn values<M: Module>(module: &M) -> Vec<Tensor<1>> {
    let mut values = Vec::new();
    walk(module, |seen| values.push((seen.value)()));
    values
}

/// Takes each parameter's gradient out of `gradients`.
pub fn gradients<M: Module>(module: &M, gradients: &mut Gradients) -> Vec<Option<Tensor<1>>> {
    let mut taken = Vec::new();
    walk(module, |seen| taken.push((seen.gradient)(gradients)));
    taken
}

/// Gradients of two parts of a batch, added up.
pub(crate) fn added(
    sum: Vec<Option<Tensor<1>>>,
    more: Vec<Option<Tensor<1>>>,
) -> Vec<Option<Tensor<1>>> {
    if sum.is_empty() {
        return more;
    }
    let pairs = sum.into_iter().zip(more);
    pairs
        .map(|pair| match pair {
            (Some(sum), Some(more)) => Some(sum + more),
            (sum, more) => sum.or(more),
        })
        .collect()
}

struct Fill<I>(I);

impl<I: Iterator<Item = Tensor<1>>> ModuleMapper for Fill<I> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let dims: [usize; D] = std::array::from_fn(|at| param.lazy_shape()[at]);
        match self.0.next() {
            Some(value) => param.map(|_| value.reshape(dims)),
            None => param,
        }
    }
}

/// The module with other values, given in its order.
pub fn with_values<M: Module>(module: M, values: Vec<Tensor<1>>) -> M {
    module.map(&mut Fill(values.into_iter()))
}

struct Arm(GradientCheckpointingStrategy);

impl ModuleMapper for Arm {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let strategy = self.0;
        param.map(|value| {
            let wanted = value.is_require_grad();
            value.with_gradient_checkpointing_strategy(strategy).set_require_grad(wanted)
        })
    }
}

/// The module ready to be differentiated, with the device's gradient checkpointing.
pub fn armed<M: Module>(module: M, device: &Device) -> M {
    let module = module.train();
    match device.gradient_checkpointing_strategy() {
        Some(strategy) if strategy != GradientCheckpointingStrategy::default() => {
            module.map(&mut Arm(strategy))
        }
        _ => module,
    }
}
