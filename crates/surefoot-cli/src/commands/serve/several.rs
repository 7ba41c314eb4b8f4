//! `surefoot serve a=DIR b=DIR --memory BYTES`: several models within one budget of memory. Each runs in a child
//! process, which is started when the model is asked for.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde::Serialize;
use surefoot::device::memory::Bytes;
use surefoot::device::supervisor;
use surefoot::journal::Journal;
use surefoot_models::Opened;
use surefoot_models::embed::Recipe;
use surefoot_models::runner::Runner;
use surefoot_models::stream::plan::Placement;
use surefoot_serve::engine::{EngineCapacity, EngineError, HTTP_BYTES};
use surefoot_serve::http::{Keys, ModelGateway, Origins, ServerSettings};
use surefoot_serve::model_pool::{ModelPool, ProcessLauncher};

use super::adapters::NamedAdapter;
use super::listener::Listening;
use super::{LONGEST_END, Serve, check_digest, lifetime, listener};
use crate::args::Global;
use crate::exit::{Exit, Failure};
use crate::model_folder::ModelFolder;
use crate::model_run;
use crate::terminal::Terminal;
use crate::watch;

/// A model and what clients call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedModel {
    pub(super) name: String,
    folder: PathBuf,
}

#[derive(Serialize)]
struct Document<'a> {
    url: String,
    models: Vec<ModelShare<'a>>,
    memory_bytes: u64,
}

#[derive(Serialize)]
struct ModelShare<'a> {
    name: &'a str,
    memory_bytes: u64,
}

/// The models that are named as NAME=DIR; none if there is one model, named by its folder alone.
pub(super) fn named(first: &Path, others: &[String]) -> Result<Option<Vec<NamedModel>>, Failure> {
    let first_text = first.to_string_lossy();
    if others.is_empty() && (first.exists() || !first_text.contains('=')) {
        return Ok(None);
    }
    let mut models: Vec<NamedModel> = Vec::new();
    for text in std::iter::once(first_text.as_ref()).chain(others.iter().map(String::as_str)) {
        let named =
            text.split_once('=').filter(|(name, folder)| !name.is_empty() && !folder.is_empty());
        let Some((name, folder)) = named else {
            return Err(Failure::usage(format!("'{text}' is not of the form NAME=DIR")).hint(
                "several models are named one by one: surefoot serve a=DIR b=DIR --memory 8GiB",
            ));
        };
        if models.iter().any(|model| model.name == name) {
            return Err(Failure::usage(format!("two models are called '{name}'")));
        }
        models.push(NamedModel { name: name.to_owned(), folder: folder.into() });
    }
    Ok(Some(models))
}

impl Serve {
    /// Serves several models.
    pub(super) fn serve_several(
        &self,
        models: &[NamedModel],
        address: SocketAddr,
        (keys, origins): (Keys, Origins),
        global: &Global,
        terminal: &Terminal,
    ) -> Result<Exit, Failure> {
        let Some(Bytes(budget)) = self.footing.memory else {
            return Err(Failure::usage(
                "several models share one budget of memory, which is not given",
            )
            .hint("--memory 8GiB, or as much as all models together may take"));
        };
        if self.name.is_some() {
            let what = format!("--name is for one model, and there are {}", models.len());
            return Err(
                Failure::usage(what).hint("models are named before their folders: NAME=DIR")
            );
        }
        let adapters = adapters_of(&self.adapter, models)?;
        self.check_digests(models)?;
        let Listening { socket, address, is_behind_gateway } = listener::listen(address)?;
        let live = watch::start(self.watch, format!("Serving {} models", models.len()), terminal)?;
        let mut journal = global.journal_builder()?;
        if let Some(live) = &live {
            journal = journal.listener(live.listener());
        }
        let own_journal = journal.build();
        let mut shares = Vec::with_capacity(models.len());
        for model in models {
            let share = self.share(model, &adapters, models.len() as u64, budget)?;
            shares.push((model.name.clone(), share));
        }
        let origins = if is_behind_gateway { Origins::default() } else { origins };
        let settings = ServerSettings {
            adapters: adapters.iter().map(|(_, adapter)| adapter.name.clone()).collect(),
            // The journal tells what the models are doing; each model's process tells of its own requests.
            ..self.gateway_settings((keys, origins), own_journal.clone())
        };
        let grace = settings.timeout + LONGEST_END;
        let folders: Vec<NamedModel> = models.to_vec();
        let journal = global.journal.clone();
        let launcher = ProcessLauncher::new(
            move |name: &str, bytes| {
                let model = folders.iter().find(|model| model.name == name);
                let folder = model.map_or(Path::new(name), |model| &model.folder);
                let mut command = child(name, folder, bytes, journal.as_deref(), &folders)?;
                for (_, adapter) in adapters.iter().filter(|(model, _)| model == name) {
                    let mut named = OsString::from(format!("{}=", adapter.name));
                    named.push(&adapter.folder);
                    command.arg("--adapter").arg(named);
                }
                Ok(command)
            },
            grace,
        );
        let pool = ModelPool::new(shares.clone(), budget, Arc::new(launcher));
        let front = Arc::new(ModelGateway::new(Arc::clone(&pool), settings));
        let served = lifetime::serve_models(socket, front, || {
            announce(address, &shares, budget, global, terminal)
        });
        pool.close();
        crate::args::flush(&own_journal, terminal);
        if let Some(live) = live {
            live.end();
        }
        served?;
        Ok(Exit::Done)
    }

    /// Checks the models whose digests are given.
    fn check_digests(&self, models: &[NamedModel]) -> Result<(), Failure> {
        for text in &self.expect_digest {
            let named = text.split_once('=');
            let known = named.and_then(|(name, digest)| {
                Some((models.iter().find(|model| model.name == name)?, digest))
            });
            let Some((model, digest)) = known else {
                let what = format!("--expect-digest '{text}' does not say which model it is of");
                return Err(Failure::usage(what).hint("--expect-digest MODEL=DIGEST for each"));
            };
            let folder = ModelFolder::of(&model.folder)?;
            check_digest(&Opened::new(folder.path())?, &model.name, digest)?;
        }
        Ok(())
    }

    /// The bytes that a model gets: an equal part of the budget if it fits there, as much more as it needs
    /// if not.
    fn share(
        &self,
        model: &NamedModel,
        adapters: &[(String, NamedAdapter)],
        count: u64,
        budget: u64,
    ) -> Result<u64, Failure> {
        let own = adapters.iter().filter(|(name, _)| *name == model.name);
        let own: Vec<&Path> = own.map(|(_, adapter)| adapter.folder.as_path()).collect();
        let folder = ModelFolder::of(&model.folder)?;
        let recipe = Recipe::read(folder.path())?;
        let precision = model_run::precision(self.footing.precision);
        let mut share = 0;
        let mut last = None;
        for others in (1..=count).rev() {
            share = budget / others;
            let footing =
                self.footing.model_footing(Journal::builder().build())?.precision(precision);
            let footing = Arc::new(footing.memory(share).build()?);
            let in_flight = if footing.device()?.is_asynchronous() { 2 } else { 1 };
            let limits = self.limits.engine_limits(recipe.max_tokens, in_flight);
            let runner = Runner::open(footing, folder.path())
                .map_err(|error| named_failure(&model.name, error.into()))?
                .weights(self.weights.weights)
                .beside(HTTP_BYTES)
                .with_adapters(&own)
                .map_err(|error| named_failure(&model.name, error.into()))?;
            match EngineCapacity::fit(&runner, &limits) {
                Ok((_, plan)) if plan.mode == Placement::Resident => return Ok(share),
                found => last = Some(found.map(|_| ())),
            }
        }
        match last {
            Some(Err(error)) => Err(named_failure(&model.name, error)),
            // Its weights don't fit beside the rest: it runs alone, and streams them.
            _ => Ok(share),
        }
    }
}

/// The adapters with the models that they are for: `MODEL:NAME=DIR`.
fn adapters_of(
    adapters: &[NamedAdapter],
    models: &[NamedModel],
) -> Result<Vec<(String, NamedAdapter)>, Failure> {
    let mut found: Vec<(String, NamedAdapter)> = Vec::new();
    for adapter in adapters {
        let model = adapter.name.split_once(':').map(|(model, _)| model);
        let model = model.and_then(|name| models.iter().find(|model| model.name == name));
        let Some(model) = model else {
            let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
            let what = format!(
                "--adapter '{}' does not say which of the models {} it is for",
                adapter.name,
                names.join(", ")
            );
            return Err(Failure::usage(what)
                .hint(format!("--adapter {}:NAME=DIR, which clients call {0}:NAME", names[0])));
        };
        if found.iter().any(|(_, other)| other.name == adapter.name) {
            return Err(Failure::usage(format!("two adapters are called '{}'", adapter.name)));
        }
        found.push((model.name.clone(), adapter.clone()));
    }
    Ok(found)
}

fn named_failure(name: &str, error: EngineError) -> Failure {
    let mut failure = Failure::from(error);
    failure.what = format!("the model '{name}' can't be served: {}", failure.what);
    failure
}

fn announce(
    address: SocketAddr,
    shares: &[(String, u64)],
    budget: u64,
    global: &Global,
    terminal: &Terminal,
) -> Result<(), Failure> {
    let url = format!("http://{address}");
    for (name, share) in shares {
        terminal.note(&format!(
            "{name}: loaded when it is asked for, at most {} of memory",
            Bytes(*share)
        ));
    }
    if supervisor::inherited().attempt > 0 {
        terminal.note(&format!("serving again on {url}"));
        return Ok(());
    }
    let models =
        shares.iter().map(|(name, share)| ModelShare { name, memory_bytes: *share }).collect();
    match global.json {
        true => terminal.json_line(&Document { url, models, memory_bytes: budget }),
        false => terminal.result(&format!("{url}\n")),
    }
}

/// Options with a value that a child does not get, or gets with another value. API keys are passed on: a child
/// can be reached by everybody on this machine.
const OWN: [&str; 8] = [
    "--host",
    "--port",
    "--memory",
    "--journal",
    "--cors",
    "--name",
    "--adapter",
    "--expect-digest",
];
/// Options without a value that a child does not get.
const OWN_FLAGS: [&str; 4] = ["--json", "--isolate", "--allow-anyone", "--watch"];
/// An option whose value, if it has one, stands behind `=`.
const WATCH_AT: &str = "--watch=";

/// This command line for one model, on a port of its own that only this machine reaches.
fn child(
    name: &str,
    folder: &Path,
    bytes: u64,
    journal: Option<&Path>,
    all: &[NamedModel],
) -> std::io::Result<Command> {
    let mut command = crate::child::own_command(["serve"])?;
    command.arg(folder).args(["--name", name, "--host", "127.0.0.1", "--port", "0", "--json"]);
    command.arg("--memory").arg(format!("{bytes}B"));
    if let Some(journal) = journal {
        let mut file = journal.file_stem().unwrap_or_default().to_owned();
        file.push(format!("-{name}"));
        if let Some(extension) = journal.extension() {
            file.push(".");
            file.push(extension);
        }
        command.arg("--journal").arg(journal.with_file_name(file));
    }
    command.args(passed_on(std::env::args_os().skip(1), all));
    supervisor::end_with_this_process(&mut command);
    listener::keep_from(&mut command);
    Ok(command)
}

/// The arguments that a child gets as they are.
fn passed_on(arguments: impl Iterator<Item = OsString>, all: &[NamedModel]) -> Vec<OsString> {
    let mut passed = Vec::new();
    let mut is_command_seen = false;
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if OWN.contains(&text.as_ref()) {
            // With its value.
            arguments.next();
            continue;
        }
        let is_command = !is_command_seen && text == "serve";
        is_command_seen |= is_command;
        let is_own = OWN_FLAGS.contains(&text.as_ref())
            || text.starts_with(WATCH_AT)
            || OWN.iter().any(|own| text.starts_with(&format!("{own}=")))
            || all.iter().any(|model| is_name_of(model, &argument));
        if !is_command && !is_own {
            passed.push(argument);
        }
    }
    passed
}

fn is_name_of(model: &NamedModel, argument: &OsStr) -> bool {
    let mut whole = OsString::from(&model.name);
    whole.push("=");
    whole.push(&model.folder);
    whole == argument
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models() -> Vec<NamedModel> {
        named(Path::new("a=/models/a"), &["b=/models/b=2".to_owned()]).unwrap().unwrap()
    }

    #[test]
    fn models_are_named_one_by_one_and_a_folder_alone_is_one_model() {
        let all = models();
        assert_eq!((all[0].name.as_str(), all[0].folder.as_path()), ("a", Path::new("/models/a")));
        assert_eq!(all[1].folder, Path::new("/models/b=2"));
        assert_eq!(named(Path::new("/models/a"), &[]).unwrap(), None);
        assert!(named(Path::new("/models/a"), &["b=/models/b".to_owned()]).is_err());
        assert!(named(Path::new("a=x"), &["a=y".to_owned()]).is_err());
        assert!(named(Path::new("a="), &[]).is_err());
    }

    #[test]
    fn adapters_say_which_model_they_are_for() {
        let adapter = |text: &str| text.parse::<NamedAdapter>().unwrap();
        let of = |texts: &[&str]| {
            let adapters: Vec<NamedAdapter> = texts.iter().map(|text| adapter(text)).collect();
            adapters_of(&adapters, &models())
        };
        let found = of(&["a:x=/x", "b:x=/y"]).unwrap();
        assert_eq!((found[0].0.as_str(), found[0].1.name.as_str()), ("a", "a:x"));
        assert_eq!((found[1].0.as_str(), found[1].1.folder.as_path()), ("b", Path::new("/y")));
        for wrong in [&["x=/x"][..], &["c:x=/x"], &["a:x=/x", "a:x=/y"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_child_gets_the_options_that_are_about_models() {
        let given = "-q serve a=/models/a b=/models/b=2 --memory 8GiB --port=0 --context 512 --json --drill x --journal j --adapter b:x=y --expect-digest=a=0 --watch --watch=7";
        let passed = passed_on(given.split(' ').map(OsString::from), &models());
        assert_eq!(passed, ["-q", "--context", "512", "--drill", "x"].map(OsString::from));
    }
}
