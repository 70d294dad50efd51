"""Who answers for a GPU, a host or a link, best first; predictions, the tracker and what-ifs are put together here."""
