"""What runs inside SGLang's own processes, by its plugin entry point: no file of it is edited. Nothing here may import
more than torch and this package's own modules of torch alone."""
