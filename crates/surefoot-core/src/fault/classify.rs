//! From an error with its sources to a [`Fault`], for engines: typed links first, text last.

use std::collections::TryReserveError;
use std::error::Error;
use std::io;

use super::{BoxError, Fault, FaultKind, take_device_panics};

/// Makes a fault of `error`. A [`Fault`] anywhere in its chain of sources is passed on as it is.
/// Else the deepest link that `kind_of_type` knows decides, and without one, `kind_of_text` does,
/// of all texts, one a line. The error is kept as the fault's source.
pub fn classify(
    operation: &str,
    error: BoxError,
    kind_of_type: impl Fn(&(dyn Error + 'static)) -> Option<FaultKind>,
    kind_of_text: impl Fn(&str) -> FaultKind,
) -> Fault {
    let error = match error.downcast::<Fault>() {
        Ok(fault) => return *fault,
        Err(error) => error,
    };
    let outermost: &(dyn Error + 'static) = error.as_ref();
    let links: Vec<_> = std::iter::successors(Some(outermost), |&link| below(link)).collect();
    if let Some(fault) = links.iter().find_map(|link| link.downcast_ref::<Fault>()) {
        return fault.clone();
    }
    let texts: Vec<String> = links.iter().map(ToString::to_string).collect();
    let typed = links.iter().rev().find_map(|link| kind_of_type(*link));
    let kind = typed.unwrap_or_else(|| kind_of_text(&texts.join("\n")));
    if !kind.is_callers() {
        // This error reports what happened: a later panic has another cause.
        drop(take_device_panics());
    }
    Fault::with_chain(kind, operation, texts).caused_by(error)
}

/// The next error down. An io error that carries another passes it over in its `source()`.
fn below<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(carried) => Some(carried),
        None => error.source(),
    }
}

/// The kind of an error of the standard library; none for any other type.
pub fn kind_of_std(error: &(dyn Error + 'static)) -> Option<FaultKind> {
    if error.is::<TryReserveError>() {
        return Some(FaultKind::OutOfMemory);
    }
    let error = error.downcast_ref::<io::Error>()?;
    // A file that is missing, forbidden or cut short is the caller's to correct, whatever its
    // text says; only memory is a device's fault.
    Some(match error.kind() {
        io::ErrorKind::OutOfMemory => FaultKind::OutOfMemory,
        _ => FaultKind::NotDeviceRelated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the batch could not be read")]
    struct Outer(#[source] io::Error);

    fn by_type(error: impl Error + Send + Sync + 'static) -> Fault {
        classify("read", Box::new(error), kind_of_std, |_| FaultKind::Numeric)
    }

    #[test]
    fn types_decide_before_texts() {
        let disk = io::Error::new(io::ErrorKind::StorageFull, "out of memory on /data");
        assert_eq!(by_type(disk).kind, FaultKind::NotDeviceRelated);
        let host = io::Error::from(io::ErrorKind::OutOfMemory);
        assert_eq!(by_type(host).kind, FaultKind::OutOfMemory);
        let reserve = Vec::<u8>::new().try_reserve(usize::MAX).unwrap_err();
        assert_eq!(by_type(reserve).kind, FaultKind::OutOfMemory);
        assert_eq!(by_type("x".parse::<u8>().unwrap_err()).kind, FaultKind::Numeric);
    }

    #[test]
    fn the_cause_is_kept_as_a_source_that_can_be_downcast() {
        let fault = by_type(Outer(io::Error::from(io::ErrorKind::OutOfMemory)));
        assert_eq!(fault.kind, FaultKind::OutOfMemory);
        assert_eq!(fault.chain.len(), 2, "{:?}", fault.chain);
        let source = fault.source().expect("a source");
        let outer = source.downcast_ref::<Outer>().expect("the error that was given");
        assert_eq!(outer.0.kind(), io::ErrorKind::OutOfMemory);
        assert!(fault.clone().source().is_some(), "a clone keeps it");
    }

    #[test]
    fn a_fault_inside_an_error_is_passed_on_as_it_is() {
        let inner = Fault::new(FaultKind::StateLost, "step", "the weights are gone").on("gpu");
        let boxed: BoxError = Box::new(inner.clone());
        assert_eq!(classify("other", boxed, kind_of_std, |_| FaultKind::Numeric), inner);
        let wrapped = io::Error::other(inner.clone());
        assert_eq!(by_type(wrapped), inner);
    }
}
