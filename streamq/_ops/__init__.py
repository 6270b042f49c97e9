"""One verb a module, plans only. Siblings never import one another; what combines verbs lies in `streamq._flows`."""
