//! The projections of a model that adapters can be added to, and how they are named.

use crate::arch::blueprint::{Head, Layout, Projection};
use crate::run::opened::Opened;

/// A projection of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name in transformers: `model.layers.0.self_attn.q_proj`.
    pub module: String,
    /// The name of its weight in the model's files.
    pub tensor: String,
    /// Inputs.
    pub inputs: usize,
    /// Outputs.
    pub outputs: usize,
    /// Whether the weight is stored `[inputs, outputs]`, which PEFT calls `fan_in_fan_out`.
    pub fan_in_fan_out: bool,
    /// The rows of a head, if the file has them in another order than transformers: of queries and keys in a GGUF file.
    pub interleaved_head: Option<usize>,
    /// The head, which is not among the usual targets.
    pub is_head: bool,
}

/// The projections of a model, in the order in which a pass uses them.
#[derive(Clone, Debug)]
pub struct Projections(pub Vec<Target>);

impl Projections {
    /// Those of an opened model.
    pub fn of(opened: &Opened) -> Self {
        let (blueprint, binding) = (&opened.blueprint, &opened.binding);
        let mut found = Vec::new();
        let reordered = blueprint.rope.as_ref().is_some_and(|rope| rope.reordered);
        let mut add = |projection: &Projection, matrix: usize, turned: bool| {
            let name = projection.weight.strip_suffix(".weight").unwrap_or(&projection.weight);
            found.push(Target {
                module: format!("{}{name}", blueprint.prefix),
                tensor: binding.matrices[matrix].stored.name.clone(),
                inputs: projection.inputs,
                outputs: projection.outputs,
                fan_in_fan_out: projection.layout == Layout::InOut,
                interleaved_head: (reordered && turned).then_some(blueprint.head_dim),
                is_head: false,
            });
        };
        for (block, bound) in blueprint.blocks.iter().zip(&binding.blocks) {
            for (number, (projection, bound)) in block.qkv.iter().zip(&bound.qkv).enumerate() {
                // Values are not turned.
                add(projection, bound.matrix, number < 2);
            }
            add(&block.out, bound.out.matrix, false);
            for (projection, bound) in block.up.iter().zip(&bound.up) {
                add(projection, bound.matrix, false);
            }
            if let (Some(projection), Some(bound)) = (&block.down, &bound.down) {
                add(projection, bound.matrix, false);
            }
        }
        if let Some(head) = binding.head {
            let module = match &blueprint.head {
                Head::Own(name) => name.strip_suffix(".weight").unwrap_or(name),
                Head::Tied | Head::None => "lm_head",
            };
            found.push(Target {
                module: module.to_owned(),
                tensor: binding.matrices[head].stored.name.clone(),
                inputs: blueprint.hidden,
                outputs: blueprint.vocab,
                fan_in_fan_out: false,
                interleaved_head: None,
                is_head: true,
            });
        }
        Self(found)
    }

    /// Those that `names` mean: whole names, or their last parts (`q_proj`); in the model's order.
    pub fn named(&self, names: &[String]) -> Vec<&Target> {
        let meant = |target: &&Target| names.iter().any(|name| matches(name, &target.module));
        self.0.iter().filter(meant).collect()
    }

    /// The last parts of all names, each once: what can be asked for.
    pub fn short_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for target in &self.0 {
            let name = target.module.rsplit('.').next().unwrap_or_default();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// Whether a target's name means a module, as PEFT sees it.
pub(crate) fn matches(name: &str, module: &str) -> bool {
    module == name || module.strip_suffix(name).is_some_and(|before| before.ends_with('.'))
}

/// What is adapted if nothing is said: all projections of the blocks.
pub fn default_targets(projections: &Projections) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for target in projections.0.iter().filter(|target| !target.is_head) {
        let name = target.module.rsplit('.').next().unwrap_or_default().to_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn projections_are_named_as_in_transformers() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let of = |name: &str| Projections::of(&Opened::new(&fixtures.join(name)).unwrap());
        let llama = of("llama-tiny");
        assert_eq!(llama.0[0].module, "model.layers.0.self_attn.q_proj");
        assert_eq!(
            llama.short_names(),
            [
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "gate_proj",
                "up_proj",
                "down_proj",
                "lm_head"
            ]
        );
        assert!(!default_targets(&llama).contains(&"lm_head".to_owned()));
        // A checkpoint that leaves the prefix out is still called as the class calls it.
        let gpt2 = of("gpt2-noprefix");
        assert_eq!(gpt2.0[0].module, "transformer.h.0.attn.c_attn");
        assert_eq!(gpt2.0[0].tensor, "h.0.attn.c_attn.weight");
        assert!(gpt2.0[0].fan_in_fan_out);
        // `c_proj` means both projections of that name.
        assert_eq!(gpt2.named(&["c_proj".to_owned()]).len() % 2, 0);
        assert_eq!(gpt2.named(&["h.0.attn.c_proj".to_owned()]).len(), 1);
        assert!(gpt2.named(&["proj".to_owned()]).is_empty());
    }
}
