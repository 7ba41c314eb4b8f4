//! Which devices this build can reach, and what their aliases stand for.

use super::{Backend, DeviceName, NameError, Selector};

/// Whether this build can reach a backend.
pub fn is_in_build(backend: Backend) -> bool {
    match backend {
        Backend::Cpu => true,
        Backend::Metal => cfg!(target_os = "macos"),
        Backend::Cuda => cfg!(feature = "cuda"),
        Backend::Vulkan => cfg!(all(feature = "vulkan", not(target_os = "macos"))),
        // With `vulkan` on, wgpu compiles to SPIR-V and the same device is called `vulkan`.
        Backend::Gpu => {
            cfg!(all(feature = "gpu", not(feature = "vulkan"), not(target_os = "macos")))
        }
        _ => false,
    }
}

/// What would add a backend to a build that lacks it.
fn remedy(backend: Backend) -> &'static str {
    match backend {
        Backend::Metal => "metal is part of every build on macOS and of no other",
        Backend::Cuda => "build with `--features cuda` (downloads an LLVM bundle)",
        Backend::Vulkan => "build with `--features vulkan`",
        Backend::Gpu => "build with `--features gpu`",
        Backend::Xpu => "xpu is PyTorch's name for Intel GPUs; here they are `gpu` or `vulkan`",
        _ => "the CPU is part of every build",
    }
}

fn available() -> String {
    Backend::PREFERRED
        .into_iter()
        .filter(|backend| is_in_build(*backend))
        .map(|backend| match backend {
            Backend::Metal => "metal (also mps and gpu)",
            Backend::Vulkan => "vulkan (also gpu)",
            other => other.as_str(),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

/// The device that `name` stands for in this build, or what would add it. `gpu` means the wgpu
/// device that this build has, whatever it is called there.
pub fn resolve(name: DeviceName) -> Result<DeviceName, NameError> {
    let backend = match name.backend {
        Backend::Gpu => [Backend::Metal, Backend::Vulkan]
            .into_iter()
            .find(|backend| is_in_build(*backend))
            .unwrap_or(Backend::Gpu),
        backend => backend,
    };
    if is_in_build(backend) {
        return Ok(DeviceName { backend, ..name });
    }
    let remedy = remedy(backend).to_owned();
    Err(NameError::NotInBuild { name: name.to_string(), available: available(), remedy })
}

/// The device of this build that `text` names.
pub fn named(text: &str) -> Result<DeviceName, NameError> {
    resolve(text.parse()?)
}

/// What `--device` says, if this build can reach at least one device of it. The others are passed
/// over when a footing is built, which records that.
pub fn select(text: &str) -> Result<Selector, NameError> {
    let names = match text.parse()? {
        Selector::Auto => return Ok(Selector::Auto),
        Selector::Together { names, parts } => {
            let names: Result<Vec<_>, _> = names.into_iter().map(resolve).collect();
            return Ok(Selector::Together { names: names?, parts });
        }
        Selector::Chain(names) => names,
    };
    let resolved: Vec<_> = names.iter().map(|name| resolve(*name)).collect();
    match resolved.iter().find_map(|name| name.as_ref().err()) {
        Some(error) if resolved.iter().all(Result::is_err) => Err(error.clone()),
        _ => {
            let kept = names.iter().zip(&resolved).map(|(name, found)| match found {
                Ok(found) => *found,
                Err(_) => *name,
            });
            Ok(Selector::Chain(kept.collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_another_build_says_what_would_add_it() {
        for (name, feature) in [("cuda", "cuda"), ("vulkan", "vulkan"), ("gpu", "gpu")] {
            if let Err(error) = named(name) {
                let message = error.to_string();
                assert!(message.contains(&format!("--features {feature}")), "{message}");
            }
        }
        #[cfg(not(target_os = "macos"))]
        assert!(named("mps").unwrap_err().to_string().contains("macOS"));
    }

    #[test]
    fn a_list_needs_one_device_that_this_build_has() {
        assert_eq!(select("cpu").unwrap(), Selector::only(DeviceName::CPU));
        assert!(select("xpu,cpu").is_ok());
        assert!(matches!(select("xpu"), Err(NameError::NotInBuild { .. })));
        assert!(matches!(select("cpu,nothing"), Err(NameError::Unknown(_))));
        assert!(matches!(select("cpu+xpu"), Err(NameError::NotInBuild { .. })), "all are needed");
    }
}
