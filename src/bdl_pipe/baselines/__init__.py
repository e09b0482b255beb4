"""What everything else is compared with: one network, several, cheap posteriors over weights, Gaussian processes."""
