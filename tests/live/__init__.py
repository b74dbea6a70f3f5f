"""Tests of the live callback: real Trainers, real MDS datasets, real DataLoader workers."""
