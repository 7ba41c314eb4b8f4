//! Pages of keys and values, taken as they are needed and never more than a number of them.
//!
//! A page belongs to whoever holds it; when the last holder is gone its memory is kept for the next page, until
//! [`PagePool::release_spare`]. Only a page with a single holder is written.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use surefoot_ops::PageLayout;

/// The keys and values of some tokens.
#[derive(Debug)]
pub(crate) struct Page {
    numbers: Box<[f32]>,
    pool: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    in_use: AtomicUsize,
    spare: Mutex<Vec<Box<[f32]>>>,
}

impl Page {
    pub(crate) fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    pub(crate) fn numbers_mut(&mut self) -> &mut [f32] {
        &mut self.numbers
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.numbers);
        self.pool.in_use.fetch_sub(1, Ordering::Relaxed);
        self.pool.spare.lock().unwrap_or_else(PoisonError::into_inner).push(numbers);
    }
}

/// Gives out pages.
#[derive(Debug)]
pub(crate) struct PagePool {
    layout: PageLayout,
    most: usize,
    shared: Arc<Shared>,
}

impl PagePool {
    /// A pool of at most `most` pages, none of which takes memory yet.
    pub(crate) fn new(layout: PageLayout, most: usize) -> Self {
        Self { layout, most, shared: Arc::default() }
    }

    pub(crate) fn layout(&self) -> PageLayout {
        self.layout
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn in_use(&self) -> usize {
        self.shared.in_use.load(Ordering::Relaxed)
    }

    /// A page of zeros, unless all are in use.
    pub(crate) fn take(&self) -> Option<Arc<Page>> {
        if self.in_use() >= self.most {
            return None;
        }
        self.shared.in_use.fetch_add(1, Ordering::Relaxed);
        let spare = self.shared.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let numbers = match spare {
            // What is not written yet is multiplied by 0, so it must be finite.
            Some(mut numbers) => {
                numbers.fill(0.0);
                numbers
            }
            None => vec![0.0; self.layout.numbers()].into_boxed_slice(),
        };
        Some(Arc::new(Page { numbers, pool: Arc::clone(&self.shared) }))
    }

    /// Gives the memory of pages that are not in use back to the system.
    pub(crate) fn release_spare(&self) {
        self.shared.spare.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
